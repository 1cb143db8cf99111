"""Run a host of a slot protocol in real time, in a network whose job has the protocol's program.

While `peelsum up` runs the network, `peelsum exec HOST -- python -m benchmarks.rivals.real_time NAME` is a
worker, or the server, if the protocol has one. The server serves until it is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rivals.program_bench import (
    Endpoint,
    Message,
    SlotJob,
    SlotProtocol,
    Words,
    Worker,
    pack,
    unpack,
)
from benchmarks.rivals.slot_protocols import PROTOCOLS, SWITCHML_FLOATS, THC
from peelsum.processes import print_message
from peelsum.processes.user_errors import ProcessError, exit_on_errors
from peelsum.simulation import Job, TimersSection
from peelsum.topology.namespaces import HOST_INTERFACE
from peelsum.transport.config import SEAT
from peelsum.wire import FRAME_HEADER_BYTES, HEADER_BYTES, PROOF_BYTES, FrameAddress, encapsulation

_PROTOCOLS = {**PROTOCOLS, "switchml_floats": SWITCHML_FLOATS, "thc": THC}
_FLOATS = ("switchml_floats", "thc")
#: Seconds without a packet after which a host says what it waits for.
_SILENT_S = 2.0
#: Python needs about 50 us for a packet, and workers share processors.
_SLOTS, _WINDOW, _TIMERS = 1024, 32, TimersSection(resend_least=0.1, resend_most=2.0)
_ETHERTYPE_IPV4, _SOL_PACKET, _PACKET_IGNORE_OUTGOING = 0x0800, 263, 23
_LARGEST, _BLOCK = 1 << 16, 64
#: From and to whom frames on interfaces are; a bridge with losses drops those without a source.
_FRAME = (FrameAddress(b"\x02peel\0", bytes(4)), FrameAddress(b"\xff" * 6, bytes(4)))


class Port:
    """A host's end of its link to the switch: a UDP socket, or an interface, by the seat's `wire`."""

    def __init__(self, seat: Mapping[str, Any]) -> None:
        """Open a seat's port. Raises OSError, or ProcessError if it does not answer."""
        if seat["wire"] == "ethernet":
            self._headers = FRAME_HEADER_BYTES
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETHERTYPE_IPV4))
            self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            self._socket.bind((HOST_INTERFACE, _ETHERTYPE_IPV4))
        else:
            self._headers = 0
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.connect((seat["switch_host"], seat["switch_port"]))
            self._name = f"{seat['switch_host']}:{seat['switch_port']}"
            self._plug_in()

    def _plug_in(self) -> None:
        """Send hellos until the port answers; then it sends to this socket. Raises ProcessError."""
        self._socket.settimeout(0.2)
        for _ in range(int(_SILENT_S / 0.2)):
            with suppress(TimeoutError), self._named_errors():
                self._socket.send(b"")
                if len(self._socket.recv(_LARGEST)) == PROOF_BYTES:
                    raise ProcessError(
                        f"{self._name}: the port belongs to another job, which was admitted since; load the "
                        "program again with `peelsum readmit`"
                    )
                return
        raise ProcessError(f"{self._name}: the switch's port does not answer; is the network up?")

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Translate errors of a switch that has ended to a ProcessError."""
        try:
            yield
        except ConnectionRefusedError:
            raise ProcessError(
                f"{self._name}: the switch has ended, and its sums are lost; start all hosts again"
            ) from None

    def send(self, job: SlotJob, messages: Sequence[Message]) -> None:
        """Send messages."""
        if messages:
            for payload, size in zip(*pack(job, messages), strict=True):
                data = payload[: size - FRAME_HEADER_BYTES].tobytes()
                with self._named_errors():
                    self._socket.send(encapsulation(len(data), *_FRAME) + data if self._headers else data)

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message, or None after `timeout_s` seconds, or if a packet is no message."""
        self._socket.settimeout(max(timeout_s, 1e-6))
        try:
            with self._named_errors():
                data = self._socket.recv(_LARGEST)[self._headers :]
        except TimeoutError:
            return None
        if len(data) < HEADER_BYTES or len(data) % 4:
            return None
        return unpack(np.frombuffer(data, np.uint8)[np.newaxis])[0]


def take_part(protocol: SlotProtocol, words: Words) -> Worker:
    """Sum as the worker in this process's seat, and return the worker; as the server, never return.

    words: of all workers, uint32[workers, elements]. Raises ProcessError if nothing arrives for the job's
    `timeout_s`, the switch ends, or this process has no seat in a job with a program.
    """
    seat = _seat()
    *worker_ports, server_port = seat["ports"]
    lanes, workers = seat["lanes"], len(worker_ports)
    if len(words) != workers:
        raise ProcessError(f"words: of {len(words)} workers; give those of the job's {workers}")
    values, window = lanes * protocol.values_per_lane, min(seat["window"] or _WINDOW, _SLOTS)
    padded = np.zeros((workers, -(-words.shape[1] // values) * values), np.uint32)
    padded[:, : words.shape[1]] = words
    job = SlotJob(
        number=seat["job"],
        jobs=1,
        slots=_SLOTS,
        settings=Job(workers=workers, window=window, initial_window=min(window, _WINDOW), timers=_TIMERS),
        words=padded.reshape(workers, -1, values),
        lanes=lanes,
        result_lanes=lanes * protocol.lane_growth,
        ports=worker_ports,
        server_port=server_port,
    )
    if seat["worker_id"] < workers:
        worker = protocol.worker(job, seat["worker_id"])
        others = [host for number, host in enumerate(seat["hosts"]) if number != worker.number]
        others = others if protocol.server else others[:-1]
        hint = f"start {', '.join(others)}, too, with the protocol of {seat['program']}, which the switch "
        hint += "runs; load it again with `peelsum readmit` between two runs"
        _run(worker, job, Port(seat), seat["timeout_s"], hint)
        return worker
    if protocol.server is None:
        raise ProcessError("this protocol has no server; run workers only")
    _run(protocol.server(job), job, Port(seat))
    raise AssertionError("a server does not end")


def _seat() -> dict[str, Any]:
    """Return this process's seat. Raises ProcessError if it has none in a job with a program."""
    seat: dict[str, Any] = json.loads(os.environ.get(SEAT, "{}"))
    if "ports" not in seat:
        raise ProcessError("no seat of a job with a program; run this by `peelsum exec` at one of its hosts")
    return seat


def _run(end: Endpoint, job: SlotJob, port: Port, timeout_s: float = 0.0, hint: str = "") -> None:
    """Exchange messages until a worker has all sums.

    A worker to which nothing comes says so with a hint, and after `timeout_s` raises ProcessError.
    """
    warned = False
    port.send(job, end.start(heard := time.monotonic()))
    while not (isinstance(end, Worker) and end.done):
        now, due = time.monotonic(), end.next_timer()
        if due is not None and due <= now:
            port.send(job, end.expire(now))
        message = port.receive(1.0 if due is None else min(1.0, due - now))
        if message is not None:
            port.send(job, end.receive(message, heard := time.monotonic()))
            warned = False
        elif isinstance(end, Worker) and now > heard + (timeout_s if warned else min(_SILENT_S, timeout_s)):
            progress = f"worker {end.number}: {len(end.results)} of {job.chunks} sums, and no packet for"
            if now > heard + timeout_s:
                raise ProcessError(f"{progress} {timeout_s:g} s; {hint}")
            warned = True
            print(
                f"{progress} {_SILENT_S:g} s; waiting up to {timeout_s:g} s: {hint}",
                file=sys.stderr,
                flush=True,
            )


def words_of(protocol: str, workers: int, elements: int, seed: int) -> Words:
    """Return random words of all workers, uint32[workers, elements]; for some protocols of float32.

    About half of each worker's blocks of 64 are zeros. Floats of a block have one random exponent.
    """
    rng, blocks = np.random.default_rng(seed), -(-elements // _BLOCK)
    if protocol in _FLOATS:
        values = rng.normal(size=(workers, blocks, _BLOCK)) * 2.0 ** rng.integers(-140, 124, (1, blocks, 1))
        words = values.astype(np.float32).view(np.uint32)
    else:
        words = rng.integers(0, 1 << 32, (workers, blocks, _BLOCK), np.uint32)
    words *= rng.random((workers, blocks, 1)) < 0.5
    return words.reshape(workers, -1)[:, :elements]


def main() -> None:
    """Sum random words, of which all hosts know all, and print a line of JSON. Status 1: a sum is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals.real_time", description=main.__doc__)
    parser.add_argument("protocol", choices=_PROTOCOLS)
    parser.add_argument("--elements", type=int, default=100_000, help="of each worker's tensor")
    parser.add_argument("--seed", type=int, default=0, help="the same for all hosts")
    parser.add_argument("--results", type=Path, metavar="FILE.npy", help="write the worker's sums here")
    options = parser.parse_args()
    protocol = _PROTOCOLS[options.protocol]
    with exit_on_errors(OSError):
        workers = len(_seat()["ports"]) - 1
        words = words_of(options.protocol, workers, options.elements, options.seed)
        began = time.monotonic()
        worker = take_part(protocol, words)
        seconds = time.monotonic() - began
        results = np.stack(
            [worker.results.get(chunk, 0 * worker.words[0]) for chunk in range(worker.job.chunks)]
        )
        wrong = protocol.wrong(worker.job.words, results)
        if options.results:
            np.save(options.results, results)
        print_message(worker=worker.number, seconds=seconds, wrong=wrong, resends=worker.resends)
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

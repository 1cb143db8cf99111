"""`peelsum bench endpoint`: packets that one core of a worker sends and takes results for.

A second process returns the only worker's contributions as results. There are two measurements: `sockets` is
the endpoint with socket and clock, as in training; `bare` is a loop that sends and receives as many bytes
without reading them.
"""

from __future__ import annotations

import multiprocessing
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Part
from peelsum.bench.switch.load import WrongSumError, as_results
from peelsum.processes.user_errors import sigint_blocked
from peelsum.transport import JobConfig, SwitchSummation
from peelsum.wire import Batch, Kind, pack, packet_bytes
from peelsum.wire.datagrams import Address, BatchSocket

_TENSOR_CHUNKS = 4096
_BATCH = 64
#: Seconds of silence after which packets count as lost.
_TIMEOUT_S = 0.2


class PacketTimes(NamedTuple):
    """How many packets were sent and came back as results, and their time."""

    packets: int
    cpu_s: float
    """CPU seconds of this process."""
    wall_s: float


def measure(lanes: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of the endpoint over sockets, and of sockets alone.

    Each is measured for `seconds`. Raises WrongSumError.
    """
    words, config = _words(lanes), _config(lanes)
    packets = pack(words.reshape(-1, lanes), kind=Kind.CONTRIBUTION, job_id=1, chunk_id=0)

    def sum_tensor() -> int:
        (result,) = summation.sum_words([Part(words, "add")])
        _require_equal(result, words)
        return _TENSOR_CHUNKS

    with _echo_process(lanes) as peer:
        with SwitchSummation(config, 0, peer) as summation:
            measured = {"sockets": _repeat(sum_tensor, seconds)}
        with BatchSocket.bind(("127.0.0.1", 0), packet_bytes(lanes)) as sock:
            sock.connect(peer)
            window = min(config.window, sock.room)
            measured["bare"] = _repeat(lambda: _exchange(sock, packets, window), seconds)
    per_core = {way: times.packets / times.cpu_s for way, times in measured.items()}
    for way, times in measured.items():
        yield {
            "way": way,
            "packets_per_core_s": round(per_core[way]),
            "packets_per_s": round(times.packets / times.wall_s),
            "share_of_bare": round(per_core[way] / per_core["bare"], 3),
        }


def _config(lanes: int) -> JobConfig:
    return JobConfig(job_id=1, generation=0, workers=1, lanes=lanes)


def _exchange(sock: BatchSocket, packets: Batch, window: int) -> int:
    """Send all packets, at most `window` ahead of the results; return the number that came back."""
    sent = received = 0
    while received < len(packets):
        while sent < len(packets) and sent - received < window:
            sent += sock.send(packets[sent : min(sent + _BATCH, received + window)])
        burst = sock.receive()
        if burst is not None:
            received += len(burst.packets)
        elif not select.select([sock], [], [], _TIMEOUT_S)[0]:
            break  # lost packets do not count
    return received


def _repeat(run: Callable[[], int], seconds: float) -> PacketTimes:
    """Repeat `run`, which returns its number of packets, for `seconds`, after one call to warm up."""
    run()
    packets, started, cpu_started = 0, time.perf_counter(), time.process_time()
    while (wall_s := time.perf_counter() - started) < seconds or not packets:
        packets += run()
    return PacketTimes(packets, time.process_time() - cpu_started, wall_s)


def _words(lanes: int) -> NDArray[np.uint32]:
    return np.random.default_rng(0).integers(0, 1 << 32, _TENSOR_CHUNKS * lanes, np.uint32)


def _require_equal(result: NDArray[np.uint32], words: NDArray[np.uint32]) -> None:
    wrong = np.flatnonzero(result != words)
    if wrong.size:
        raise WrongSumError(f"element {wrong[0]}: {result[wrong[0]]} came back instead of {words[wrong[0]]}")


@contextmanager
def _echo_process(lanes: int) -> Iterator[Address]:
    """Run a process that returns contributions as results during the body; yield its address."""
    context = multiprocessing.get_context("spawn")
    connection, child_connection = context.Pipe()
    process: Any = context.Process(target=_echo, args=(child_connection, lanes), daemon=True)
    with sigint_blocked():
        process.start()
    child_connection.close()
    try:
        yield connection.recv()
    finally:
        connection.close()
        process.join()


def _echo(connection: Connection, lanes: int) -> None:
    """Return all contributions as results until the other end of the pipe closes."""
    # If the parent was interrupted, nobody takes the address.
    with suppress(BrokenPipeError), BatchSocket.bind(("127.0.0.1", 0), packet_bytes(lanes)) as sock:
        connection.send(sock.address)
        readable: list[Any] = [sock, connection]
        while connection not in select.select(readable, [], [])[0]:
            while (burst := sock.receive()) is not None:
                if burst.hello:
                    sock.send_hello(burst.source)
                else:
                    sock.send(as_results(burst.packets, lanes), burst.source)

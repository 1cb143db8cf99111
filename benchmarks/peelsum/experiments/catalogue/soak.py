"""Millions of chunks with losses and wraps in one process, every sum compared.

Chunks of 32 lanes go through the softswitch, the aggregation server and four workers, in one process
without sockets. Chunk id, slot tag and the slots' clock start just below their wraps. Each hop loses a
share `loss` of the packets. A quarter of the tensors is OR-ed; the others are added. Every sum of every
worker is compared bit for bit.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from peelsum.experiments import Column, Experiment, Size
from peelsum.pipelines import pipeline
from peelsum.softswitch import Frames, Switch, load
from peelsum.softswitch.ports.udp import frame_header
from peelsum.transport import AggregationServer, JobConfig, TensorCompleted, Timers, WorkerEndpoint
from peelsum.wire import CPU_PORT, FRAME_HEADER_BYTES, Batch, Kind, pack, packet_bytes
from peelsum.wire.clock import EPOCH_TICKS, TICK_US

LANES, WORKERS, WINDOW, SLOTS = 32, 4, 1024, 4096
SERVER_PORT = WORKERS + 1
#: Distance of the first chunk id and of the slots' clock from their wraps, which come early in the run.
CHUNKS_BEFORE_WRAP, SECONDS_BEFORE_WRAP = 5000, 0.05
TENSOR_CHUNKS = 2048
#: Tensors that each worker submits ahead, so that its window is always full.
AHEAD = 3
#: Virtual time of one pass from the hosts to the switch and back.
PASS_US = 100
ROWS = 16 * WINDOW


class Tensors:
    """Numbered, different tensors, whose sums are known without adding them."""

    def __init__(self, seed: int) -> None:
        numbers = np.random.default_rng(seed)
        shape = (WORKERS, TENSOR_CHUNKS * LANES)
        self._pool = numbers.integers(0, 1 << 32, shape, dtype=np.uint32)
        self._sum: NDArray[np.uint32] = self._pool.sum(axis=0, dtype=np.uint32)
        self._union: NDArray[np.uint32] = np.bitwise_or.reduce(self._pool)

    def of(self, number: int, worker: int) -> NDArray[np.uint32]:
        """Return a worker's words: its pool plus a word of the number, or, if OR-ed, AND that word."""
        words: NDArray[np.uint32] = self._pool[worker]
        return words & _mixed(number) if self.united(number) else words + _mixed(number)

    def expected(self, number: int) -> NDArray[np.uint32]:
        """Return the sum modulo 2**32, or the OR."""
        if self.united(number):
            return self._union & _mixed(number)
        return self._sum + np.uint32(WORKERS) * _mixed(number)

    @staticmethod
    def united(number: int) -> bool:
        """Return whether a tensor is OR-ed, as is every fourth."""
        return number % 4 == 3


def _mixed(number: int) -> NDArray[np.uint32]:
    """Return a word that is unique to the number, as an array [1] so that it wraps without a warning."""
    return np.array([number], np.uint32) * np.uint32(0x9E3779B1) ^ np.uint32(0x5BD1E995)


class Hosts:
    """The workers and the server, which send and receive frames."""

    def __init__(self, config: JobConfig, tensors: Tensors, tensors_to_do: int) -> None:
        self.workers = [WorkerEndpoint(config, worker) for worker in range(WORKERS)]
        self.server = AggregationServer(config)
        self._tensors, self._to_do = tensors, tensors_to_do
        self._submitted = [0] * WORKERS
        self._completed = [0] * WORKERS
        self.wrong = 0
        self._frames = Frames(
            np.zeros((ROWS, FRAME_HEADER_BYTES + packet_bytes(LANES)), np.uint8),
            np.full(ROWS, FRAME_HEADER_BYTES + packet_bytes(LANES), np.int32),
            np.zeros(ROWS, np.int32),
        )
        self._frames.data[:, :FRAME_HEADER_BYTES] = frame_header(1, packet_bytes(LANES))
        self._waiting: deque[tuple[int, Batch]] = deque()

    @property
    def done(self) -> bool:
        """Whether every worker has all sums."""
        return min(self._completed) == self._to_do

    @property
    def chunks(self) -> int:
        """Number of chunks whose sums all workers have compared."""
        return min(self._completed) * TENSOR_CHUNKS

    def to_send(self, now: float) -> Iterator[Frames]:
        """Yield everything that hosts have to send now, in bursts that fit one batch."""
        count, frames = 0, self._frames
        for port, batch in self._packets(now):
            if count + len(batch) > ROWS:
                yield Frames(frames.data[:count], frames.length[:count], frames.port[:count])
                count = 0
            frames.data[count : count + len(batch), FRAME_HEADER_BYTES:] = batch
            frames.port[count : count + len(batch)] = port
            count += len(batch)
        yield Frames(frames.data[:count], frames.length[:count], frames.port[:count])

    def _packets(self, now: float) -> Iterator[tuple[int, Batch]]:
        for worker, endpoint in enumerate(self.workers):
            while self._submitted[worker] < min(self._to_do, self._completed[worker] + AHEAD):
                number = self._submitted[worker]
                op: Literal["add", "or"] = "or" if self._tensors.united(number) else "add"
                endpoint.submit(self._tensors.of(number, worker), op)
                self._submitted[worker] += 1
            yield from _all_of(worker + 1, endpoint, now)
        yield from _all_of(SERVER_PORT, self.server, now)

    def receive(self, frames: Frames, now: float) -> None:
        """Deliver the switch's output to the hosts, and compare the sums that complete."""
        payload = frames.data[:, FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + packet_bytes(LANES)]
        self.server.receive(payload[frames.port == SERVER_PORT], now)
        for worker, endpoint in enumerate(self.workers):
            for event in endpoint.receive(payload[frames.port == worker + 1], now):
                if isinstance(event, TensorCompleted):
                    self._completed[worker] += 1
                    self.wrong += not np.array_equal(event.words, self._tensors.expected(event.ticket))


def _all_of(
    port: int, machine: WorkerEndpoint | AggregationServer, now: float
) -> Iterator[tuple[int, Batch]]:
    machine.expire(now)
    while len(batch := machine.to_send(now, limit=WINDOW)):
        yield port, batch


def admitted_switch(config: JobConfig, now_us: int) -> Switch:
    """Return the softswitch with the job in its tables and its slots reset, as a controller leaves it."""
    switch = Switch(load(pipeline(LANES).json_path))

    def write(table: str, keys: tuple[int, ...], action: str, *params: int) -> None:
        name = next(name for name in switch.tables if name.endswith(f".{table}"))
        full = next(a.name for a in switch.program.actions.values() if a.name.endswith(f".{action}"))
        switch.tables[name].insert(keys, full, params)

    job = config.job_id
    write("jobs", (job,), "admit_job", config.generation, 0, config.expected_mask, SERVER_PORT, job)
    write("members", (job, SERVER_PORT), "admit_server")
    for worker in range(WORKERS):
        write("members", (job, worker + 1), "admit_worker", 1 << worker, worker)
        write("return_paths", (job, worker), "return_to", worker + 1)
    switch.groups.set(job, [(worker + 1, 0) for worker in range(WORKERS)])
    resets = frames_at(
        CPU_PORT, pack(np.zeros((SLOTS, LANES), np.uint32), kind=Kind.RESET, chunk_id=range(SLOTS))
    )
    switch.process(resets, now_us)
    return switch


def frames_at(port: int, batch: Batch) -> Frames:
    """Return packets as frames that enter at one port."""
    size = packet_bytes(LANES)
    header = np.broadcast_to(frame_header(1, size), (len(batch), FRAME_HEADER_BYTES))
    data = np.hstack([header, batch])
    return Frames(data, np.full(len(data), data.shape[1], np.int32), np.full(len(data), port, np.int32))


def kept(frames: Frames, numbers: np.random.Generator, loss: float) -> Frames:
    """Return the frames that survive a random loss."""
    stays = numbers.random(len(frames)) >= loss
    return Frames(frames.data[stays], frames.length[stays], frames.port[stays])


def measure(seed: int, chunks: int, loss: float) -> dict[str, Any]:
    """Sum chunks, rounded up to whole tensors, while every hop loses a share `loss` of the packets."""
    config = JobConfig(
        job_id=255,
        generation=0xFFFF,
        workers=WORKERS,
        lanes=LANES,
        window=WINDOW,
        first_chunk=(1 << 32) - CHUNKS_BEFORE_WRAP,
        timers=Timers(first_answer=0.005, resend_most=0.02, need=0.002),
    )
    hosts = Hosts(config, Tensors(seed + 1), -(-chunks // TENSOR_CHUNKS))
    now_us = ((1 << 32) - EPOCH_TICKS) * TICK_US - int(SECONDS_BEFORE_WRAP * 1e6)
    switch, numbers = admitted_switch(config, now_us), np.random.default_rng(seed + 1)
    started, at_tenth = time.perf_counter(), 0.0
    while not hosts.done:
        now_us += PASS_US
        for burst in hosts.to_send(now_us / 1e6):
            out = switch.process(kept(burst, numbers, loss), now_us)
            hosts.receive(kept(out, numbers, loss), (now_us + PASS_US // 2) / 1e6)
        if not at_tenth and hosts.chunks * 10 >= chunks:
            at_tenth = resident_mib()
    return _figures(hosts, config, time.perf_counter() - started, at_tenth)


def _figures(hosts: Hosts, config: JobConfig, seconds: float, at_tenth: float) -> dict[str, Any]:
    workers, server = [worker.stats() for worker in hosts.workers], hosts.server.stats()
    return {
        "summed": hosts.chunks,
        "wrong": hosts.wrong,
        "seconds": round(seconds, 1),
        "chunks_per_s": round(hosts.chunks / seconds),
        "contributions": sum(worker.contributions for worker in workers),
        "resends": sum(worker.resends for worker in workers),
        "chunks_in_switch": server.chunks_in_switch,
        "chunks_at_server": server.chunks_at_server,
        "last_chunk_id": (config.first_chunk + hosts.chunks - 1) % (1 << 32),
        "mib_at_tenth": round(at_tenth, 1),
        "mib_at_end": round(resident_mib(), 1),
    }


def resident_mib() -> float:
    """Return this process's resident memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "summed": Column("chunks summed and compared"),
        "wrong": Column("tensors with a wrong sum, over all workers"),
        "seconds": Column("seconds of the run"),
        "chunks_per_s": Column("chunks per second"),
        "contributions": Column("contributions sent by all workers"),
        "resends": Column("packets that workers retransmitted"),
        "chunks_in_switch": Column("chunks that the switch summed"),
        "chunks_at_server": Column("chunks that the server completed"),
        "last_chunk_id": Column("id of the last chunk"),
        "mib_at_tenth": Column("resident memory in MiB after a tenth of the chunks"),
        "mib_at_end": Column("resident memory in MiB at the end"),
    },
    defaults={"loss": 0.001},
    sizes={"quick": Size([{"chunks": 100_000}], 1), "usual": Size([{"chunks": 10_000_000}], 1)},
    ranges={"chunks": (1, 1 << 31), "loss": (0, 0.5)},
)

"""Packets that one core of a worker sends and takes results for, beside bare sockets.

One worker; a second process returns its contributions as results. `memory` is the endpoint alone, of which
only its own calls count, a window at a time; `sockets` the endpoint with socket and clock, as in training;
`bare` sockets that send and receive as many bytes without reading them, in the same process.
"""

from __future__ import annotations

import multiprocessing
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Part
from peelsum.bench.switch.load import WrongSumError, as_results
from peelsum.transport import JobConfig, SwitchSummation, TensorCompleted, WorkerEndpoint
from peelsum.wire import Batch, Kind, pack, packet_bytes
from peelsum.wire.datagrams import Address, BatchSocket

_TENSOR_CHUNKS = 4096
_BATCH = 64
_PATIENCE_S = 0.2


@dataclass(frozen=True)
class Spent:
    """Packets, and the time that they took."""

    packets: int
    """Packets sent whose results were taken."""
    cpu_s: float
    """CPU seconds of this process."""
    wall_s: float
    """Seconds of wall-clock time."""


def config_of(lanes: int) -> JobConfig:
    """Return the configuration of a job with one worker."""
    return JobConfig(job_id=1, generation=0, workers=1, lanes=lanes)


def in_memory(lanes: int, seconds: float) -> Spent:
    """Measure the endpoint alone: its packets come back as results, and only its own calls are timed."""
    endpoint, words = WorkerEndpoint(config_of(lanes), 0), _words(lanes)
    _sum_in_memory(endpoint, words)  # compiles, and grows the window
    packets, cpu_s, started = 0, 0.0, time.perf_counter()
    while (wall_s := time.perf_counter() - started) < seconds or not packets:
        cpu_s += _sum_in_memory(endpoint, words)
        packets += _TENSOR_CHUNKS
    return Spent(packets, cpu_s, wall_s)


def over_sockets(lanes: int, seconds: float, peer: Address) -> Spent:
    """Measure the worker's complete backend: endpoint, socket and clock."""
    words = _words(lanes)

    def turn() -> int:
        (result,) = summation.sum_words([Part(words, "add")])
        _require_equal(result, words)
        return _TENSOR_CHUNKS

    with SwitchSummation(config_of(lanes), 0, peer) as summation:
        return _spent(turn, seconds)


def bare_sockets(lanes: int, seconds: float, peer: Address) -> Spent:
    """Measure the same bytes over the same kind of socket and window, without any processing."""
    packets = pack(_words(lanes).reshape(-1, lanes), kind=Kind.CONTRIBUTION, job_id=1, chunk_id=0)
    with BatchSocket.bind(("127.0.0.1", 0), packet_bytes(lanes)) as sock:
        sock.connect(peer)
        window = min(config_of(lanes).window, sock.room)
        return _spent(lambda: _exchange(sock, packets, window), seconds)


def _exchange(sock: BatchSocket, packets: Batch, window: int) -> int:
    """Send all packets, at most `window` ahead of the answers; return the number that came back."""
    sent = back = 0
    while back < len(packets):
        while sent < len(packets) and sent - back < window:
            sent += sock.send(packets[sent : min(sent + _BATCH, back + window)])
        burst = sock.receive()
        if burst is not None:
            back += len(burst.packets)
        elif not select.select([sock], [], [], _PATIENCE_S)[0]:
            break  # lost packets do not count
    return back


def _spent(turn: Callable[[], int], seconds: float) -> Spent:
    """Repeat `turn`, which returns its number of packets, for `seconds`, after one call to warm up."""
    turn()
    packets, started, cpu_started = 0, time.perf_counter(), time.process_time()
    while (wall_s := time.perf_counter() - started) < seconds or not packets:
        packets += turn()
    return Spent(packets, time.process_time() - cpu_started, wall_s)


def _sum_in_memory(endpoint: WorkerEndpoint, words: NDArray[np.uint32]) -> float:
    """Sum one tensor, a window at a time, as with bursts from sockets; return the endpoint's seconds."""
    clock, now, result, spent = time.thread_time, time.monotonic(), None, 0.0
    began = clock()
    endpoint.submit(words, "add")
    while result is None:
        window: list[Batch] = []
        while len(batch := endpoint.to_send(now)):
            spent += clock() - began
            window.append(batch.copy())
            began = clock()
        spent += clock() - began
        answers = as_results(np.concatenate(window), endpoint.config.lanes)
        began = clock()
        events = endpoint.receive(answers, now)
        result = next((event.words for event in events if isinstance(event, TensorCompleted)), None)
    spent += clock() - began
    _require_equal(result, words)
    return spent


def _words(lanes: int) -> NDArray[np.uint32]:
    return np.random.default_rng(0).integers(0, 1 << 32, _TENSOR_CHUNKS * lanes, np.uint32)


def _require_equal(result: NDArray[np.uint32], words: NDArray[np.uint32]) -> None:
    wrong = np.flatnonzero(result != words)
    if wrong.size:
        raise WrongSumError(f"element {wrong[0]}: {result[wrong[0]]} came back instead of {words[wrong[0]]}")


@contextmanager
def answering(lanes: int) -> Iterator[Address]:
    """Run the peer process during the body; yield its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process: Any = context.Process(target=_answer, args=(theirs, lanes), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.join()


def _answer(connection: Connection, lanes: int) -> None:
    """Return all contributions as results until the other end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it
    with BatchSocket.bind(("127.0.0.1", 0), packet_bytes(lanes)) as sock:
        connection.send(sock.address)
        watched: list[Any] = [sock, connection]
        while connection not in select.select(watched, [], [])[0]:
            while (burst := sock.receive()) is not None:
                if burst.hello:
                    sock.send_hello(burst.source)
                else:
                    sock.send(as_results(burst.packets, lanes), burst.source)


def measure(lanes: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Measure the endpoint in memory, over sockets, and sockets alone. Raises WrongSumError."""
    with answering(lanes) as peer:
        spent = {
            "memory": in_memory(lanes, seconds),
            "sockets": over_sockets(lanes, seconds, peer),
            "bare": bare_sockets(lanes, seconds, peer),
        }
    per_core = {way: one.packets / one.cpu_s for way, one in spent.items()}
    for way, one in spent.items():
        yield {
            "way": way,
            "packets_per_core_s": round(per_core[way]),
            "packets_per_s": None if way == "memory" else round(one.packets / one.wall_s),
            "share_of_bare": round(per_core[way] / per_core["bare"], 3),
        }

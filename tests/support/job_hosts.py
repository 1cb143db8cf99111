"""A job's packets at its hosts, without a network: what a worker or a server gets, and what it sends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from peelsum.transport import AggregationServer, JobConfig, Timers, WorkerEndpoint
from peelsum.wire import EVERYONE, Kind, pack, unpack

LANES = 4
#: As a server has it, and as a worker has it.
CONFIG = JobConfig(
    job_id=9,
    generation=77,
    workers=3,
    lanes=LANES,
    window=8,
    timers=Timers(need=0.01, need_most=0.04, reply_gap=0.001, stall=5.0),
)
WORKER_CONFIG = replace(CONFIG, first_chunk=0xFFFFFFFE, timers=Timers())


def sent(machine: AggregationServer | WorkerEndpoint, now: float = 0.0) -> list[np.void]:
    """Return every packet that a host sends now, unpacked."""
    packets: list[np.void] = []
    while len(batch := machine.to_send(now, limit=2)):
        packets.extend(unpack(batch.copy(), LANES))
    return packets


def packet(kind: Kind, chunk: int, value: int = 0, **fields: int) -> np.ndarray:
    """Return a packet of the job, with this value in every lane."""
    header = {"job_id": 9, "generation": 77, "chunk_id": chunk & 0xFFFFFFFF}
    return pack(np.full((1, LANES), value, np.uint32), kind=kind, **{**header, **fields})


def result(chunk: int, value: int = 0, *, kind: Kind = Kind.RESULT, **fields: int) -> np.ndarray:
    """Return a packet for all workers."""
    return packet(kind, chunk, value, **{"sender": EVERYONE, "bitmap": 7, **fields})


def partial(chunk: int, workers: int, value: int, **fields: int) -> np.ndarray:
    """Return the sum of these workers, for the server."""
    return packet(**{"kind": Kind.BYPASS, "chunk": chunk, "value": value, "bitmap": workers, **fields})

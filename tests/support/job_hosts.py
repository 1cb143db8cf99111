"""A job's packets at its hosts, without a network: what a worker or a server gets, and what it sends."""

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
WORKER_CONFIG = replace(CONFIG, timers=Timers())
#: A first chunk after whose second one ids wrap.
WRAP = 0xFFFFFFFE
WRAPPING = replace(WORKER_CONFIG, first_chunk=WRAP)


def sent(machine, now=0.0):
    """Return every packet that a host sends now, unpacked."""
    packets = []
    while len(batch := machine.to_send(now, limit=2)):
        packets.extend(unpack(batch.copy(), LANES))
    return packets


def packet(kind, chunk, value=0, **fields):
    """Return a packet of the job, with this value in every lane."""
    header = {"job_id": 9, "generation": 77, "chunk_id": chunk & 0xFFFFFFFF}
    return pack(np.full((1, LANES), value, np.uint32), kind=kind, **{**header, **fields})


def result(chunk, value=0, *, kind=Kind.RESULT, **fields):
    """Return a packet for all workers."""
    return packet(kind, chunk, value, **{"sender": EVERYONE, "bitmap": 7, **fields})


def partial(chunk, workers, value, **fields):
    """Return the sum of these workers, for the server."""
    return packet(**{"kind": Kind.BYPASS, "chunk": chunk, "value": value, "bitmap": workers, **fields})


def sending(chunks, worker_id=0, **changed):
    """Return a worker that has sent its first window of a sum of `chunks` chunks of zeros, at 0.

    changed: further fields of its configuration.
    """
    worker = WorkerEndpoint(replace(WORKER_CONFIG, **changed), worker_id)
    worker.submit(np.zeros(chunks * LANES, np.uint32), "add")
    assert len(sent(worker)) == min(chunks, worker.stats().window)
    return worker


def let_expire(machine):
    """Let a host's next timer expire; return when it did."""
    due = machine.next_timer()
    machine.expire(due)
    return due


def chunks_of(packets, *kinds):
    """Return the packets' chunk ids; with `kinds`, only those of packets of these kinds."""
    return [int(packet["chunk_id"]) for packet in packets if not kinds or packet["kind"] in kinds]


def lossy_start(lost):
    """Send 32 chunks at 0; at 0.001, answer all but the lost ones, which are resent. The timer is 4 ms."""
    endpoint = sending(200, window=128, initial_window=32)
    endpoint.receive(np.concatenate([result(c) for c in range(32) if c not in lost]), 0.001)
    assert chunks_of(sent(endpoint, 0.001), Kind.RETRY) == lost
    return endpoint


def server_at(newest, value=1):
    """Return a server whose newest complete chunk has this sum, which it has sent to all."""
    server = AggregationServer(CONFIG)
    server.receive(partial(newest, 0b111, value), 0.0)
    (packet,) = sent(server)
    assert (packet["kind"], packet["sender"], packet["lanes"][0]) == (Kind.RESULT, EVERYONE, value)
    return server

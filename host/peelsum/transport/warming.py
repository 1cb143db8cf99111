"""Compile the packet loops ahead of use: nobody then takes compilation for a slow network."""

from __future__ import annotations

from functools import cache

import numpy as np

from peelsum.transport.config import JobConfig
from peelsum.transport.endpoint import WorkerEndpoint
from peelsum.transport.exchange_kernels import Station, exchange, new_wire, serve
from peelsum.transport.server import AggregationServer
from peelsum.wire import PROOF_BYTES, SECRET_BYTES, Kind, packet_bytes, packet_fields
from peelsum.wire.datagrams import BatchSocket
from peelsum.wire.hello import proof


@cache
def warm_up(lanes: int, planes: int = 1) -> None:
    """Compile every packet loop for `lanes`, by playing a job of one worker, with a resend, in memory.

    planes: of a worker; its loop is compiled for each number of them.
    """
    config = JobConfig(job_id=1, generation=0, workers=1, lanes=lanes, window=4)
    worker, server = WorkerEndpoint(config, 0), AggregationServer(config)
    worker.submit(np.zeros(1, np.uint32), "add")
    with BatchSocket.bind(("127.0.0.1", 0), packet_bytes(lanes)) as sock:
        sock.connect(sock.address)
        wire = new_wire(sock, worker.state.packets.shape[1])
        exchange((Station(worker.state, wire),) * planes, np.zeros(planes, np.int64), 0.0)
        serve(server.state, wire, 0.0)
    proof(bytes(SECRET_BYTES), bytes(PROOF_BYTES))
    worker.to_send(0.0)
    resent_at = worker.next_timer() or 0.0
    worker.expire(resent_at)
    packets = worker.to_send(resent_at).copy()
    packet_fields(packets, lanes)["kind"] = Kind.BYPASS
    server.receive(packets, resent_at)
    server.next_timer()
    server.expire(resent_at)
    worker.receive(server.to_send(resent_at), resent_at)

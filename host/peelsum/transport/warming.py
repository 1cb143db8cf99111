"""Compile the packet loops ahead of use, so that compilation cannot be taken for a slow network."""

from __future__ import annotations

from functools import cache

import numpy as np

from peelsum.transport.config import JobConfig
from peelsum.transport.endpoint import WorkerEndpoint
from peelsum.transport.server import AggregationServer
from peelsum.wire import Kind, fields_of


@cache
def warm_up(lanes: int) -> None:
    """Compile every packet loop for `lanes`, by playing a job of one worker, with a resend, in memory."""
    config = JobConfig(job_id=1, generation=0, workers=1, lanes=lanes, window=4)
    worker, server = WorkerEndpoint(config, 0), AggregationServer(config)
    worker.submit(np.zeros(1, np.uint32), "add")
    worker.to_send(0.0)
    resent_at = worker.next_timer() or 0.0
    worker.expire(resent_at)
    packets = worker.to_send(resent_at).copy()
    fields_of(packets, lanes)["kind"] = Kind.BYPASS
    server.receive(packets, resent_at)
    server.next_timer()
    server.expire(resent_at)
    worker.receive(server.to_send(resent_at), resent_at)

"""Reliable, exact sums over the switch.

The worker's endpoint and the aggregation server are state machines over batches of packets. Adapters connect
them to sockets and clocks.
"""

from peelsum.summation import Op
from peelsum.transport.admission import job_config
from peelsum.transport.config import JobConfig, Timers
from peelsum.transport.endpoint import WorkerEndpoint
from peelsum.transport.errors import (
    StalledError,
    SwitchUnreachableError,
    TransportConfigError,
    TransportError,
)
from peelsum.transport.events import Event, JobFinished, Stalled, TensorCompleted, WorkerLeft
from peelsum.transport.server import AggregationServer
from peelsum.transport.service import AggregationService, serve
from peelsum.transport.stats import Progress, ServerStats, WorkerStats
from peelsum.transport.udp import SwitchSummation

__all__ = [
    "AggregationServer",
    "AggregationService",
    "Event",
    "JobConfig",
    "JobFinished",
    "Op",
    "Progress",
    "ServerStats",
    "Stalled",
    "StalledError",
    "SwitchSummation",
    "SwitchUnreachableError",
    "TensorCompleted",
    "Timers",
    "TransportConfigError",
    "TransportError",
    "WorkerEndpoint",
    "WorkerLeft",
    "WorkerStats",
    "job_config",
    "serve",
]

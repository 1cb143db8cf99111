"""Reliable, exact sums over the switch.

The worker's endpoint and the aggregation server are state machines over batches of packets. Adapters connect
them to sockets and clocks.
"""

from peelsum.transport.config import JobConfig, Timers
from peelsum.transport.endpoint import WorkerEndpoint
from peelsum.transport.errors import TransportConfigError, TransportError
from peelsum.transport.events import Event, JobFinished, Stalled, TensorCompleted
from peelsum.transport.seats import job_config
from peelsum.transport.server import AggregationServer
from peelsum.transport.service import AggregationService
from peelsum.transport.udp import SwitchSummation

__all__ = [
    "AggregationServer",
    "AggregationService",
    "Event",
    "JobConfig",
    "JobFinished",
    "Stalled",
    "SwitchSummation",
    "TensorCompleted",
    "Timers",
    "TransportConfigError",
    "TransportError",
    "WorkerEndpoint",
    "job_config",
]

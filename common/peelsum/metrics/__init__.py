"""Prometheus metrics of switch, server, controllers and workers: their catalogue, values and HTTP server."""

from peelsum.metrics.catalogue import PARTS
from peelsum.metrics.serve import MetricsError, MetricsServer, metrics_address
from peelsum.metrics.values import (
    Values,
    cluster_values,
    controller_values,
    server_values,
    switch_values,
    worker_values,
)

__all__ = [
    "PARTS",
    "MetricsError",
    "MetricsServer",
    "Values",
    "cluster_values",
    "controller_values",
    "metrics_address",
    "server_values",
    "switch_values",
    "worker_values",
]

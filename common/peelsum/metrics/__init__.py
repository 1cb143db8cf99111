"""Prometheus metrics of switch, server, controllers and workers: their catalogue, values and HTTP server."""

from peelsum.metrics.catalogue import (
    PARTS,
    Values,
    cluster_values,
    controller_values,
    server_values,
    switch_values,
    worker_values,
)
from peelsum.metrics.serve import MetricsError, MetricsServer, metrics_address

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

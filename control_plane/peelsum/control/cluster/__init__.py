"""A controller of several switches and jobs, with desired state in a file, a backup, and a gRPC API."""

from peelsum.control.cluster.client import ControllerClient
from peelsum.control.cluster.cluster import Cluster
from peelsum.control.cluster.description import ClusterDescription, read_cluster
from peelsum.control.cluster.report import Report, observed
from peelsum.control.cluster.service import ControllerService
from peelsum.control.cluster.store import Store
from peelsum.control.cluster.switches import Event

__all__ = [
    "Cluster",
    "ClusterDescription",
    "ControllerClient",
    "ControllerService",
    "Event",
    "Report",
    "Store",
    "observed",
    "read_cluster",
]

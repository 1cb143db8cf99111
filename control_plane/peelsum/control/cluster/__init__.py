"""The controllers of jobs: one that shares switches with others, and one with a state file and a backup."""

from peelsum.control.cluster.client import ControllerClient, observe_cluster
from peelsum.control.cluster.cluster import Cluster, ClusterDescription, read_cluster
from peelsum.control.cluster.jobs import JobController
from peelsum.control.cluster.requests import RequestServer, listening_socket, serve_requests
from peelsum.control.cluster.runs import JobRuns
from peelsum.control.cluster.store import Store
from peelsum.control.cluster.switches import Event

__all__ = [
    "Cluster",
    "ClusterDescription",
    "ControllerClient",
    "Event",
    "JobController",
    "JobRuns",
    "RequestServer",
    "Store",
    "listening_socket",
    "observe_cluster",
    "read_cluster",
    "serve_requests",
]

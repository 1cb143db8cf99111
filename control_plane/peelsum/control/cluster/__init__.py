"""The controllers of jobs: one that shares switches with others, and one with a state file and a backup."""

from peelsum.control.cluster.client import ControllerClient, Report, observed
from peelsum.control.cluster.cluster import Cluster, ClusterDescription, read_cluster
from peelsum.control.cluster.jobs import JobController
from peelsum.control.cluster.requests import Requests, answer_all, listening
from peelsum.control.cluster.runs import Runs
from peelsum.control.cluster.store import Store
from peelsum.control.cluster.switches import Event

__all__ = [
    "Cluster",
    "ClusterDescription",
    "ControllerClient",
    "Event",
    "JobController",
    "Report",
    "Requests",
    "Runs",
    "Store",
    "answer_all",
    "listening",
    "observed",
    "read_cluster",
]

"""The catalogue of all metrics, by component. Tests compare documentation, dashboard and values with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One metric. By Prometheus's conventions its name ends in the unit, and in `_total` for counters."""

    name: str
    """The metric's name."""
    help: str
    """A description of what is counted or measured, without a full stop."""
    labels: tuple[str, ...]
    """The names of the labels."""

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """Prometheus's type of the metric: a counter never decreases, a gauge may."""
        return "counter" if self.name.endswith("_total") else "gauge"


_PORT, _JOB, _WORKER = ("port",), ("job",), ("job", "worker")

SWITCH = (
    Metric("peelsum_switch_lanes", "32-bit values per packet of the running pipeline; 0 without one", ()),
    Metric("peelsum_switch_verdict_packets_total", "Packets by the program's verdict", ("verdict",)),
    Metric("peelsum_switch_verdict_bytes_total", "Bytes of these packets", ("verdict",)),
    Metric("peelsum_switch_port_received_packets_total", "Packets that a port passed to the pipeline", _PORT),
    Metric("peelsum_switch_port_sent_packets_total", "Packets that a port sent", _PORT),
    Metric("peelsum_switch_port_hellos_total", "Hellos that a port accepted", _PORT),
    Metric("peelsum_switch_port_challenged_hellos_total", "Hellos that had to prove a secret", _PORT),
    Metric("peelsum_switch_port_refused_hellos_total", "Hellos without proof, or for a port in use", _PORT),
    Metric("peelsum_switch_port_dropped_packets_total", "Packets that a port dropped", ("port", "reason")),
    Metric("peelsum_switch_queue_sent_packets_total", "Packets that passed a port's queue", _PORT),
    Metric("peelsum_switch_queue_dropped_packets_total", "Packets that found a port's queue full", _PORT),
    Metric("peelsum_switch_queue_deepest_packets", "Most packets in a port's queue so far", _PORT),
)
SERVER = (
    Metric("peelsum_server_chunks_total", "Complete chunks, by where their sum was formed", ("job", "place")),
    Metric("peelsum_server_received_packets_total", "Packets received", _JOB),
    Metric("peelsum_server_merged_packets_total", "Packets combined with what the server held", _JOB),
    Metric("peelsum_server_duplicate_packets_total", "Packets whose workers were all in the sum", _JOB),
    Metric("peelsum_server_overlap_packets_total", "Partial sums dropped because of an overlap", _JOB),
    Metric("peelsum_server_sent_packets_total", "Packets sent", ("job", "kind")),
    Metric("peelsum_server_withheld_replies_total", "Replies not sent, so soon after the last", _JOB),
    Metric("peelsum_server_dropped_packets_total", "Packets dropped", ("job", "reason")),
)
CONTROLLER = (
    Metric("peelsum_controller_generation", "Generation of the held job; 0 for none", _JOB),
    Metric("peelsum_controller_admissions_total", "Admissions of the job", _JOB),
    Metric("peelsum_controller_lost_switches_total", "Switches that stopped responding", _JOB),
    Metric("peelsum_controller_regained_switches_total", "Switches that responded again", _JOB),
    Metric("peelsum_controller_restored_switches_total", "Switches that got lost tables back", _JOB),
    Metric("peelsum_controller_errors_total", "Starts and checks that failed", _JOB),
)
CLUSTER = (
    Metric("peelsum_cluster_epoch", "Election id of this controller as the primary; 0 in a backup", ()),
    Metric("peelsum_cluster_jobs", "Admitted jobs", ()),
    Metric("peelsum_cluster_switches", "Switches by state; none in a backup", ("state",)),
    Metric("peelsum_cluster_events_total", "What happened at this controller", ("kind",)),
)
WORKER = (
    Metric("peelsum_worker_contributions_total", "Chunks sent for the first time", _WORKER),
    Metric("peelsum_worker_resends_total", "RETRY and RESEND packets sent", _WORKER),
    Metric("peelsum_worker_results_total", "Results accepted", _WORKER),
    Metric("peelsum_worker_duplicates_total", "Results of chunks that already had theirs", _WORKER),
    Metric("peelsum_worker_lost_contributions_total", "Contributions found lost", _WORKER),
    Metric("peelsum_worker_timeouts_total", "Chunks retransmitted by the resend timer", _WORKER),
    Metric("peelsum_worker_needs_total", "NEED packets received", _WORKER),
    Metric("peelsum_worker_marked_results_total", "Results with an ECN mark", _WORKER),
    Metric("peelsum_worker_window_chunks", "Congestion window", _WORKER),
    Metric("peelsum_worker_window_cuts_total", "Cuts of the congestion window", _WORKER),
    Metric("peelsum_worker_dropped_packets_total", "Packets dropped", (*_WORKER, "reason")),
    Metric("peelsum_worker_round_trip_seconds", "Round-trip time so far", (*_WORKER, "statistic")),
)

#: All metrics, by component.
PARTS = {"switch": SWITCH, "server": SERVER, "controller": CONTROLLER, "cluster": CLUSTER, "worker": WORKER}


def table() -> str:
    """Return the catalogue as a Markdown table, for the documentation."""
    rows = ["| metric | labels | what |", "|---|---|---|"]
    rows += [
        f"| `{metric.name}` | {', '.join(metric.labels) or '-'} | {metric.help} |"
        for metrics in PARTS.values()
        for metric in metrics
    ]
    return "\n".join(rows) + "\n"

"""Convert the statistics of each component into the values of its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The values of metrics, by name and then by label values, in the order of the metric's labels.
Values = dict[str, dict[tuple[str, ...], float]]
#: The metrics of a port's counters; all other counters are numbers of dropped packets, by reason.
_PORT_METRICS = {
    "received": "received_packets",
    "sent": "sent_packets",
    "hellos": "hellos",
    "challenges": "challenged_hellos",
    "refused": "refused_hellos",
}
_QUEUE_METRICS = {
    "sent": "sent_packets_total",
    "dropped": "dropped_packets_total",
    "deepest": "deepest_packets",
}


def switch_values(
    lanes: int,
    verdicts: Mapping[str, tuple[int, int]],
    ports: Mapping[int, Mapping[str, int]],
    queues: Mapping[int, Mapping[str, float]],
) -> Values:
    """Return the values of a switch's metrics.

    verdicts: packets and bytes by the verdict's name. ports, queues: counters by port.
    """
    values: Values = {}
    _add(values, "peelsum_switch_lanes", (), lanes)
    for verdict, (packets, size) in verdicts.items():
        _add(values, "peelsum_switch_verdict_packets_total", (verdict,), packets)
        _add(values, "peelsum_switch_verdict_bytes_total", (verdict,), size)
    for port, counts in ports.items():
        for name, count in counts.items():
            if name in _PORT_METRICS:
                _add(values, f"peelsum_switch_port_{_PORT_METRICS[name]}_total", (str(port),), count)
            else:
                _add(values, "peelsum_switch_port_dropped_packets_total", (str(port), name), count)
    for port, queue in queues.items():
        for name, metric in _QUEUE_METRICS.items():
            _add(values, f"peelsum_switch_queue_{metric}", (str(port),), queue[name])
    return values


def server_values(jobs: Mapping[int, Mapping[str, Any]]) -> Values:
    """Return the values of an aggregation server's metrics. jobs: `ServerStats` as dictionaries, by job."""
    values: Values = {}
    for job, stats in jobs.items():
        prefix, key = "peelsum_server_", str(job)
        _add(values, prefix + "chunks_total", (key, "switch"), stats["chunks_in_switch"])
        _add(values, prefix + "chunks_total", (key, "server"), stats["chunks_at_server"])
        for name, metric in _SERVER_METRICS.items():
            _add(values, f"{prefix}{metric}_total", (key,), stats[name])
        for kind in ("results", "replies", "resends", "needs"):
            _add(values, prefix + "sent_packets_total", (key, kind), stats[kind])
        for reason, count in stats["dropped"].items():
            _add(values, prefix + "dropped_packets_total", (key, reason), count)
    return values


def worker_values(job: int, worker: int, stats: Mapping[str, Any]) -> Values:
    """Return the values of a worker's metrics. stats: its `WorkerStats` as a dictionary."""
    values: Values = {}
    prefix, key = "peelsum_worker_", (str(job), str(worker))
    for name, metric in _WORKER_METRICS.items():
        _add(values, prefix + metric, key, stats[name])
    for reason, count in stats["dropped"].items():
        _add(values, prefix + "dropped_packets_total", (*key, reason), count)
    for statistic in ("mean", "least", "most"):
        seconds = stats[f"rtt_{statistic}"]
        if seconds is not None:
            _add(values, prefix + "round_trip_seconds", (*key, statistic), seconds)
    return values


def controller_values(job: int, generation: int | None, events: Mapping[str, int]) -> Values:
    """Return the values of the metrics of one job's controller.

    generation: the job's generation; None if it is not admitted. events: the number of events of each kind.
    """
    counts = {
        "generation": generation or 0,
        "admissions_total": events["admitted"],
        "lost_switches_total": events["lost"],
        "regained_switches_total": events["regained"],
        "restored_switches_total": events["restored"],
        "errors_total": events["error"] + events["ended"],
    }
    return {f"peelsum_controller_{name}": {(str(job),): count} for name, count in counts.items()}


def cluster_values(totals: Mapping[str, int]) -> Values:
    """Return the values of a cluster controller's metrics.

    totals: epoch, number of jobs, and numbers of switches that are up and away; all others count events.
    """
    values: Values = {}
    for name, value in totals.items():
        if name in ("epoch", "jobs"):
            _add(values, f"peelsum_cluster_{name}", (), value)
        elif name in ("up", "away"):
            _add(values, "peelsum_cluster_switches", (name,), value)
        else:
            _add(values, "peelsum_cluster_events_total", (name,), value)
    return values


def _add(values: Values, metric: str, labels: tuple[str, ...], value: float) -> None:
    values.setdefault(metric, {})[labels] = value


_SERVER_METRICS = {
    "packets": "received_packets",
    "merged": "merged_packets",
    "duplicates": "duplicate_packets",
    "overlaps": "overlap_packets",
    "replies_withheld": "withheld_replies",
}
_WORKER_METRICS = {
    "contributions": "contributions_total",
    "resends": "resends_total",
    "results": "results_total",
    "duplicates": "duplicates_total",
    "lost": "lost_contributions_total",
    "timeouts": "timeouts_total",
    "needs": "needs_total",
    "marked": "marked_results_total",
    "window": "window_chunks",
    "window_cuts": "window_cuts_total",
}

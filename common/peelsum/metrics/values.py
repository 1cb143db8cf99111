"""The values of each part's metrics, from the statistics that the part keeps anyway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: By metric: a number for each combination of label values, in the order of the metric's labels.
Values = dict[str, dict[tuple[str, ...], float]]
#: A port's counts that are not drops.
_PORT = {
    "received": "received_packets",
    "sent": "sent_packets",
    "hellos": "hellos",
    "challenges": "challenged_hellos",
    "refused": "refused_hellos",
}
_QUEUE = {"sent": "sent_packets_total", "dropped": "dropped_packets_total", "deepest": "deepest_packets"}


def switch_values(
    lanes: int,
    verdicts: Mapping[str, tuple[int, int]],
    ports: Mapping[int, Mapping[str, int]],
    queues: Mapping[int, Mapping[str, float]],
) -> Values:
    """Return a switch's values. verdicts: packets and bytes by name. ports, queues: counts by port."""
    found: Values = {}
    _set(found, "peelsum_switch_lanes", (), lanes)
    for verdict, (packets, size) in verdicts.items():
        _set(found, "peelsum_switch_verdict_packets_total", (verdict,), packets)
        _set(found, "peelsum_switch_verdict_bytes_total", (verdict,), size)
    for port, counts in ports.items():
        for name, count in counts.items():
            if name in _PORT:
                _set(found, f"peelsum_switch_port_{_PORT[name]}_total", (str(port),), count)
            else:
                _set(found, "peelsum_switch_port_dropped_packets_total", (str(port), name), count)
    for port, queue in queues.items():
        for name, metric in _QUEUE.items():
            _set(found, f"peelsum_switch_queue_{metric}", (str(port),), queue[name])
    return found


def server_values(jobs: Mapping[int, Mapping[str, Any]]) -> Values:
    """Return a server's values. jobs: `ServerStats` by job, as dictionaries."""
    found: Values = {}
    for job, stats in jobs.items():
        prefix, key = "peelsum_server_", str(job)
        _set(found, prefix + "chunks_total", (key, "switch"), stats["chunks_in_switch"])
        _set(found, prefix + "chunks_total", (key, "server"), stats["chunks_at_server"])
        for name, metric in _SERVER.items():
            _set(found, f"{prefix}{metric}_total", (key,), stats[name])
        for kind in ("results", "replies", "resends", "needs"):
            _set(found, prefix + "sent_packets_total", (key, kind), stats[kind])
        for reason, count in stats["dropped"].items():
            _set(found, prefix + "dropped_packets_total", (key, reason), count)
    return found


def worker_values(job: int, worker: int, stats: Mapping[str, Any]) -> Values:
    """Return a worker's values. stats: its `WorkerStats`, as a dictionary. worker: its number in the job."""
    found: Values = {}
    prefix, key = "peelsum_worker_", (str(job), str(worker))
    for name, metric in _WORKER.items():
        _set(found, prefix + metric, key, stats[name])
    for reason, count in stats["dropped"].items():
        _set(found, prefix + "dropped_packets_total", (*key, reason), count)
    for statistic in ("mean", "least", "most"):
        seconds = stats[f"rtt_{statistic}"]
        if seconds is not None:
            _set(found, prefix + "round_trip_seconds", (*key, statistic), seconds)
    return found


def controller_values(job: int, generation: int | None, events: Mapping[str, int]) -> Values:
    """Return the values of a job's controller. generation: None for none. events: counts by kind."""
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
    """Return the values of a cluster's controller. totals: epoch, jobs, up, away; the rest are events."""
    found: Values = {}
    for name, value in totals.items():
        if name in ("epoch", "jobs"):
            _set(found, f"peelsum_cluster_{name}", (), value)
        elif name in ("up", "away"):
            _set(found, "peelsum_cluster_switches", (name,), value)
        else:
            _set(found, "peelsum_cluster_events_total", (name,), value)
    return found


def _set(found: Values, metric: str, labels: tuple[str, ...], value: float) -> None:
    found.setdefault(metric, {})[labels] = value


_SERVER = {
    "packets": "received_packets",
    "merged": "merged_packets",
    "duplicates": "duplicate_packets",
    "overlaps": "overlap_packets",
    "replies_withheld": "withheld_replies",
}
_WORKER = {
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

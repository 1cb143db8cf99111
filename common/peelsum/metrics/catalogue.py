"""All metrics by component: their catalogue, their values, and a Grafana dashboard of them.

Tests compare documentation, dashboard and values with the catalogue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: The values of metrics, by name and then by label values, in the order of the metric's labels.
Values = dict[str, dict[tuple[str, ...], float]]


@dataclass(frozen=True)
class Metric:
    """One metric. By Prometheus's conventions its name ends in the unit, and in `_total` for counters."""

    name: str
    """The metric's name."""
    help: str
    """A description of what is counted or measured, without a full stop."""
    labels: tuple[str, ...]
    """The names of the labels."""
    field: str = ""
    """The field of the component's statistics that it shows; empty if it is made of several."""

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """Prometheus's type of the metric: a counter never decreases, a gauge may."""
        return "counter" if self.name.endswith("_total") else "gauge"


_PORT, _JOB, _WORKER = ("port",), ("job",), ("job", "worker")


def _metrics(part: str, *metrics: tuple[Any, ...]) -> tuple[Metric, ...]:
    """Return a component's metrics, whose names begin with the component's."""
    return tuple(Metric(f"peelsum_{part}_{name}", *others) for name, *others in metrics)


SWITCH = _metrics(
    "switch",
    ("lanes", "32-bit values per packet of the running pipeline; 0 without one", ()),
    ("verdict_packets_total", "Packets by the program's verdict", ("verdict",)),
    ("verdict_bytes_total", "Bytes of these packets", ("verdict",)),
    ("port_received_packets_total", "Packets that a port passed to the pipeline", _PORT, "received"),
    ("port_sent_packets_total", "Packets that a port sent", _PORT, "sent"),
    ("port_hellos_total", "Hellos that a port accepted", _PORT, "hellos"),
    ("port_challenged_hellos_total", "Hellos that had to prove a secret", _PORT, "challenges"),
    ("port_refused_hellos_total", "Hellos without proof, or for a port in use", _PORT, "refused"),
    ("port_dropped_packets_total", "Packets that a port dropped", ("port", "reason")),
    ("unsent_packets_total", "Packets from the program that no port sent", ("reason",)),
    ("queue_sent_packets_total", "Packets that passed a port's queue", _PORT, "sent"),
    ("queue_dropped_packets_total", "Packets that found a port's queue full", _PORT, "dropped"),
    ("queue_deepest_packets", "Most packets in a port's queue so far", _PORT, "deepest"),
)
SERVER = _metrics(
    "server",
    ("chunks_total", "Complete chunks, by where their sum was formed", ("job", "place")),
    ("received_packets_total", "Packets received", _JOB, "packets"),
    ("merged_packets_total", "Packets combined with what the server held", _JOB, "merged"),
    ("duplicate_packets_total", "Packets whose workers were all in the sum", _JOB, "duplicates"),
    ("overlap_packets_total", "Partial sums dropped because of an overlap", _JOB, "overlaps"),
    ("sent_packets_total", "Packets sent", ("job", "kind")),
    ("withheld_replies_total", "Replies not sent, so soon after the last", _JOB, "replies_withheld"),
    ("dropped_packets_total", "Packets dropped", ("job", "reason")),
)
CONTROLLER = _metrics(
    "controller",
    ("generation", "Generation of the held job; 0 for none", _JOB),
    ("admissions_total", "Admissions of the job", _JOB),
    ("lost_switches_total", "Switches that stopped responding", _JOB),
    ("regained_switches_total", "Switches that responded again", _JOB),
    ("restored_switches_total", "Switches that got lost tables back", _JOB),
    ("errors_total", "Starts and checks that failed", _JOB),
)
CLUSTER = _metrics(
    "cluster",
    ("epoch", "Election id of this controller as the primary; 0 in a backup", ()),
    ("jobs", "Admitted jobs", ()),
    ("switches", "Switches by state; none in a backup", ("state",)),
    ("events_total", "What happened at this controller", ("kind",)),
)
WORKER = _metrics(
    "worker",
    ("contributions_total", "Chunks sent for the first time", _WORKER, "contributions"),
    ("resends_total", "RETRY and RESEND packets sent", _WORKER, "resends"),
    ("results_total", "Results accepted", _WORKER, "results"),
    ("duplicates_total", "Results of chunks that already had theirs", _WORKER, "duplicates"),
    ("lost_contributions_total", "Contributions found lost", _WORKER, "lost"),
    ("timeouts_total", "Chunks retransmitted by the resend timer", _WORKER, "timeouts"),
    ("needs_total", "NEED packets received", _WORKER, "needs"),
    ("marked_results_total", "Results with an ECN mark", _WORKER, "marked"),
    ("window_chunks", "Congestion window", _WORKER, "window"),
    ("window_cuts_total", "Cuts of the congestion window", _WORKER, "window_cuts"),
    ("dropped_packets_total", "Packets dropped", (*_WORKER, "reason")),
    ("round_trip_seconds", "Round-trip time so far", (*_WORKER, "statistic")),
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


def switch_values(
    lanes: int,
    verdicts: Mapping[str, tuple[int, int]],
    ports: Mapping[int, Mapping[str, int]],
    queues: Mapping[int, Mapping[str, float]],
    unsent: Mapping[str, int],
) -> Values:
    """Return the values of a switch's metrics.

    verdicts: packets and bytes by the verdict's name. ports, queues: counters by port. unsent: packets by
    reason.
    """
    values: Values = {"peelsum_switch_lanes": {(): lanes}}
    for verdict, (packets, size) in verdicts.items():
        _add(values, "peelsum_switch_verdict_packets_total", (verdict,), packets)
        _add(values, "peelsum_switch_verdict_bytes_total", (verdict,), size)
    for port, counts in ports.items():
        shown = _add_fields(values, SWITCH, "peelsum_switch_port_", (str(port),), counts)
        for reason in counts.keys() - shown:
            _add(values, "peelsum_switch_port_dropped_packets_total", (str(port), reason), counts[reason])
    for reason, count in unsent.items():
        _add(values, "peelsum_switch_unsent_packets_total", (reason,), count)
    for port, queue in queues.items():
        _add_fields(values, SWITCH, "peelsum_switch_queue_", (str(port),), queue)
    return values


def server_values(jobs: Mapping[int, Mapping[str, Any]]) -> Values:
    """Return the values of an aggregation server's metrics. jobs: `ServerStats` as dictionaries, by job."""
    values: Values = {}
    for job, stats in jobs.items():
        prefix, key = "peelsum_server_", str(job)
        _add(values, prefix + "chunks_total", (key, "switch"), stats["chunks_in_switch"])
        _add(values, prefix + "chunks_total", (key, "server"), stats["chunks_at_server"])
        _add_fields(values, SERVER, prefix, (key,), stats)
        for kind in ("results", "replies", "resends", "needs"):
            _add(values, prefix + "sent_packets_total", (key, kind), stats[kind])
        for reason, count in stats["dropped"].items():
            _add(values, prefix + "dropped_packets_total", (key, reason), count)
    return values


def worker_values(job: int, worker: int, stats: Mapping[str, Any]) -> Values:
    """Return the values of a worker's metrics. stats: its `WorkerStats` as a dictionary."""
    values: Values = {}
    prefix, key = "peelsum_worker_", (str(job), str(worker))
    _add_fields(values, WORKER, prefix, key, stats)
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


def _add_fields(
    values: Values, metrics: Sequence[Metric], prefix: str, labels: tuple[str, ...], stats: Mapping[str, Any]
) -> set[str]:
    """Add the metrics that begin with a prefix and show one field of `stats`; return these fields."""
    shown = [metric for metric in metrics if metric.field and metric.name.startswith(prefix)]
    for metric in shown:
        _add(values, metric.name, labels, stats[metric.field])
    return {metric.field for metric in shown}


def _add(values: Values, metric: str, labels: tuple[str, ...], value: float) -> None:
    values.setdefault(metric, {})[labels] = value


_DATASOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard() -> str:
    """Return the dashboard as JSON that Grafana can import."""
    panels: list[dict[str, Any]] = []
    top = 0
    width, height = 12, 8
    for part, metrics in PARTS.items():
        row = {"type": "row", "title": part, "collapsed": False}
        panels.append({"id": len(panels) + 1, **row, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
        top += 1
        for number, metric in enumerate(metrics):
            x, y = number % 2 * width, top + number // 2 * height
            place = {"x": x, "y": y, "w": width, "h": height}
            panels.append({"id": len(panels) + 1, **_panel(metric), "gridPos": place})
        top += -(-len(metrics) // 2) * height
    datasource = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"}
    document = {
        "title": "peelsum",
        "uid": "peelsum",
        "schemaVersion": 39,
        "time": {"from": "now-15m", "to": "now"},
        "refresh": "5s",
        "templating": {"list": [datasource]},
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"


def expression(metric: Metric) -> str:
    """Return a panel's PromQL expression: the rate of a counter or the value of a gauge, by label values."""
    labels = ", ".join(("instance", *metric.labels))
    if metric.kind == "counter":
        return f"sum by ({labels}) (rate({metric.name}[$__rate_interval]))"
    return f"max by ({labels}) ({metric.name})"


def _panel(metric: Metric) -> dict[str, Any]:
    """Return the panel of a metric, a time series, in Grafana's JSON model."""
    legend = " ".join(f"{{{{{label}}}}}" for label in ("instance", *metric.labels))
    words = metric.name.removeprefix("peelsum_").removesuffix("_total").split("_")
    title = " ".join(words) + (" per second" if metric.kind == "counter" else "")
    units = {"bytes": "Bps", "seconds": "s"}
    unit = next((units[word] for word in words if word in units), "short")
    return {
        "type": "timeseries",
        "title": title,
        "description": metric.help,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": "A", "datasource": _DATASOURCE, "expr": expression(metric), "legendFormat": legend}
        ],
    }

"""The list of metrics beside everything that repeats it: conventions, documentation, dashboard, values."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

from peelsum.metrics import (
    PARTS,
    cluster_values,
    controller_values,
    server_values,
    switch_values,
    worker_values,
)
from peelsum.metrics.catalogue import dashboard, expression, table
from peelsum.softswitch.ports.udp import PortCounts
from peelsum.softswitch.runtime.queues import QueueCounts
from peelsum.transport.stats import ServerStats, WorkerStats

ROOT = Path(__file__).parents[2]
ALL = {metric.name: metric for metrics in PARTS.values() for metric in metrics}


def test_the_documentation_has_the_list():
    assert table() in (ROOT / "docs/reference/metrics.md").read_text()


def test_the_dashboard_has_a_panel_for_each_metric():
    text = (ROOT / "deploy/grafana.json").read_text()
    assert text == dashboard()
    panels = json.loads(text)["panels"]
    shown = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    assert shown == [expression(metric) for metric in ALL.values()]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)


def _numbered(kind, **more):
    """Each field of a class of statistics, with a number of its own."""
    numbers = {field.name: number for number, field in enumerate(fields(kind), 1)}
    return {**numbers, **more}


def test_every_statistic_has_a_metric_and_every_metric_a_statistic():
    """Each number of the statistics is among the values exactly once; the labels fit the list."""
    port, queue = _numbered(PortCounts), {"sent": 901, "dropped": 902, "mean": 0.5, "deepest": 903}
    assert queue.keys() == {field.name for field in fields(QueueCounts)}
    dropped = {"dropped": {"stray": 801}}
    server, worker = _numbered(ServerStats, **dropped), _numbered(WorkerStats, **dropped)
    events = {"admitted": 2, "lost": 3, "regained": 4, "restored": 5, "error": 60, "ended": 7}
    controller = {"generation": 1, "admitted": 2, "lost": 3, "regained": 4, "restored": 5, "errors": 67}
    totals = {"epoch": 11, "jobs": 12, "up": 13, "away": 14, "lost": 15}
    found = {
        "cluster": (cluster_values(totals), [totals]),
        "switch": (
            switch_values(601, {"absorbed": (701, 702)}, {1: port}, {1: queue}, {"malformed": 703}),
            [port, queue],
        ),
        "server": (server_values({1: server}), [server]),
        "worker": (worker_values(1, 0, worker), [worker]),
        "controller": (controller_values(1, 1, events), [controller]),
    }
    extra = {
        "switch": [601, 701, 702, 703],
        "server": [801],
        "worker": [801],
        "controller": [],
        "cluster": [],
    }
    for part, (values, statistics) in found.items():
        assert values.keys() == {metric.name for metric in PARTS[part]}
        for name, cells in values.items():
            assert {len(labels) for labels in cells} == {len(ALL[name].labels)}, name
        numbers = [
            value for counts in statistics for key, value in counts.items() if key not in ("dropped", "mean")
        ]
        numbers += [902] * (part == "switch")
        assert sorted(v for cells in values.values() for v in cells.values()) == sorted(numbers + extra[part])

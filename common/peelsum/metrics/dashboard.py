"""Generate a Grafana dashboard with a panel for each metric of the catalogue."""

from __future__ import annotations

import json
from typing import Any

from peelsum.metrics.catalogue import PARTS, Metric

_DATASOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT = 12, 8


def dashboard() -> str:
    """Return the dashboard as JSON that Grafana can import."""
    panels: list[dict[str, Any]] = []
    top = 0
    for part, metrics in PARTS.items():
        panels.append(_placed({"type": "row", "title": part, "collapsed": False}, len(panels), 0, top, 24, 1))
        top += 1
        for number, metric in enumerate(metrics):
            x, y = number % 2 * _WIDTH, top + number // 2 * _HEIGHT
            panels.append(_placed(_panel(metric), len(panels), x, y, _WIDTH, _HEIGHT))
        top += -(-len(metrics) // 2) * _HEIGHT
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


def _placed(panel: dict[str, Any], number: int, x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"id": number + 1, **panel, "gridPos": {"x": x, "y": y, "w": width, "h": height}}

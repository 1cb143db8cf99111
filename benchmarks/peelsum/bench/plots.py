"""Draw the figures of docs/results and of docs/reference/codec.md. Needs matplotlib."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[2] / "results"
FIGURES = RESULTS.parents[1] / "docs" / "figures"
#: Text stays text in the SVG, and the same measurements give the same file.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "peelsum", "font.size": 9})
_FORMS = {
    ("lhc", ""): "LHC, program",
    ("lhc_fewest", ""): "LHC, best",
    ("sketch", "bitmap"): "sketch, bitmap",
    ("compact", "bitmap"): "compact, bitmap",
    ("sketch", "bloom"): "sketch, bloom",
    ("auto", ""): "planner, fewest words",
}
_LAYOUTS = {"kept": "lane kept (LHC)", "rotated": "rotated"}
_SHOWN = ("dense", "exact", "top-k:0.01", "star:0.01", "packed:8", "ef-sign", "power:2")
_SHARES = ("iid", "1", "0.1")
_SHOWN_BY_SHARES = (
    *("dense", "top-k:0.01", "top-k:0.01/no-feedback", "star:0.01"),
    *("var:0.01", "packed:4", "power:2", "ef-sign"),
)
_SWITCHES = (("embedded", "memory"), ("embedded", "udp"), ("bmv2", "veth"))


def rate_of_a_switch(figure: Any) -> None:
    """Plot packets per second by lanes and by workers."""
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, rows, key in ((left, _read("switch"), "lanes"), (right, _read("ports"), "workers")):
        for target, ports in _SWITCHES:
            mine = sorted(
                (row[key], row["packets_per_s"])
                for row in rows
                if (row["target"], row["ports"]) == (target, ports)
            )
            axes.plot(*zip(*mine, strict=True), marker="o", label=f"{target}, {ports}")
        _doubling(axes, sorted({row[key] for row in rows}))
        axes.set_yscale("log")
    left.set(xlabel="lanes (4 workers)", ylabel="contributions/s")
    right.set(xlabel="workers (256 lanes)")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)


def parts_of_a_packet(figure: Any) -> None:
    """Plot nanoseconds per contribution by lanes: in the program, and in the process around it."""
    report = _read("profile")
    for axes, part, title in zip(
        figure.subplots(1, 2),
        ("program", "loop"),
        ("in the program", "in the process, over UDP"),
        strict=True,
    ):
        rows = [row for row in report[part] if row["workers"] == 4]
        _stack(axes, [str(row["lanes"]) for row in rows], [row["parts_ns"] for row in rows])
        axes.set(xlabel="lanes", title=title)
    figure.axes[0].set_ylabel("ns a contribution")


def size_of_forms(figure: Any) -> None:
    """Plot the size over the lower bound by density, one plot per support."""
    rows, supports = _read("codec_size"), ("uniform", "rows", "columns")
    for axes, support in zip(figure.subplots(1, 3, sharey=True), supports, strict=True):
        for (form, index), label in _FORMS.items():
            mine = [
                (row["density"], row["over_lower_bound"])
                for row in rows
                if row["support"] == support and row["form"] == form and index in ("", row["index"])
            ]
            axes.plot(*zip(*mine, strict=True), marker=".", label=label)
        axes.axhline(1, color="0.7", linewidth=0.8, zorder=0)
        axes.set(xscale="log", yscale="log", xlabel="non-zeros", title=support)
        axes.set_xticks([0.001, 0.01, 0.1, 0.5], ["0.1%", "1%", "10%", "50%"])
        axes.set_yticks([1, 2, 5, 10, 50, 100], ["1", "2", "5", "10", "50", "100"])
        axes.minorticks_off()
    figure.axes[0].set_ylabel("size over lower bound")
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)


def recovery(figure: Any) -> None:
    """Plot the share recovered by cells per non-zero, with lanes kept and rotated."""
    axes = figure.subplots()
    rows = [row for row in _read("recovery") if row["part"] == "curve"]
    for colour, support in enumerate(("uniform", "rows", "columns")):
        mine = [row for row in rows if row["support"] == support]
        sizes = [row["cells_per_candidate"] for row in mine]
        for layout, style in (("kept", "--"), ("rotated", "-")):
            recovered = [1 - row[layout] for row in mine]
            label = f"{_LAYOUTS[layout]}, {support}"
            axes.plot(sizes, recovered, style, color=f"C{colour}", label=label)
    axes.set(xlabel="cells per non-zero", ylabel="recovered by peeling")
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _stack(axes: Any, names: Sequence[str], parts: Sequence[dict[str, float]]) -> None:
    below = [0.0] * len(parts)
    for part in parts[0]:
        heights = [one[part] for one in parts]
        axes.bar(names, heights, bottom=below, label=part, width=0.6)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    handles, labels = axes.get_legend_handles_labels()
    beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    axes.legend(handles[::-1], labels[::-1], frameon=False, fontsize=8, **beside)


def _doubling(axes: Any, values: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])


def training(figure: Any) -> None:
    """Plot the switch's speedup of an iteration, and of its sums alone, by the links' rate."""
    shown = (
        ("speedup_over_dense", "an iteration, over dense", 3.74),
        ("aggregation_over_dense", "its sums, over dense", 6.33),
        ("speedup_over_gloo", "an iteration, over gloo", None),
        ("aggregation_over_gloo", "its sums, over gloo", None),
    )
    for axes, (key, title, paper) in zip(figure.subplots(1, 4, sharey=True), shown, strict=True):
        for number, (label, rows) in enumerate(_by_model(_read("train")).items()):
            points = sorted((row["gbps"], row[key]) for row in rows if row["path"] == "switch")
            style = "--" if label.endswith("top 1%") else "-"
            axes.plot(*zip(*points, strict=True), style, marker="o", color=f"C{number}", label=label)
        axes.axhline(1, color="black", linewidth=0.8)
        if paper is not None:
            axes.axhline(paper, color="0.5", linestyle=":", label="LHC's paper, at best")
        axes.set(xscale="log", yscale="log", xlabel="Gbit/s of every link", title=title)
        axes.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
        axes.set_yticks([0.125, 0.25, 0.5, 1, 2, 4, 8, 16], ["1/8", "1/4", "1/2", "1", "2", "4", "8", "16"])
        axes.minorticks_off()
    figure.axes[0].set_ylabel("times faster")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)


def accuracy(figure: Any) -> None:
    """Plot what was learned by modelled seconds, at a slow and a fast link, mean over seeds."""
    from peelsum.bench.accuracy.network import fastest
    from peelsum.bench.accuracy.rows import Request, grouped, read_runs
    from peelsum.flexible import LinkModel

    groups = grouped(list(read_runs(RESULTS / "accuracy.json").values()))
    models = ("digits", "ratings", "text")
    for row, (axes_of, gbps) in enumerate(zip(figure.subplots(2, 3), (0.1, 10.0), strict=True)):
        for axes, model in zip(axes_of, models, strict=True):
            for number, method in enumerate(_SHOWN):
                runs = groups[model, method, 4, "iid", None]
                step_s = fastest(runs[0], LinkModel(Request().latency_s, gbps)).seconds + runs[0].compute_s
                points = zip(*(run.curve for run in runs), strict=True)
                curve = [(one[0][0] * step_s, sum(value for _, value in one) / len(one)) for one in points]
                axes.plot(*zip(*curve, strict=True), color=f"C{number}", label=method, linewidth=1)
            axes.set(title=f"{model}, {gbps:g} Gbit/s", ylabel=runs[0].metric)
            if not runs[0].higher:
                axes.set(yscale="log")
            if row:
                axes.set(xlabel="seconds, network modelled")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=7, frameon=False
    )


def bytes_and_accuracy(figure: Any) -> None:
    """Plot the accuracy of digits, with four workers, by how many times fewer bytes each method takes."""
    from peelsum.bench.accuracy.rows import Request, read_runs, rows_of

    runs = [run for run in read_runs(RESULTS / "accuracy.json").values() if run.setting.model == "digits"]
    rows = rows_of(runs, [1.0], Request().latency_s)
    axes = figure.subplots()
    shown = [row for row in rows if (row.shares, row.workers) == ("iid", 4) and row.final is not None]
    for number, row in enumerate(sorted(shown, key=lambda row: row.times_less)):
        style = "os^Dv"[number // 10]
        spread = row.final_spread or 0.0
        axes.errorbar(row.times_less, row.final, spread, fmt=style, label=row.method, elinewidth=0.8)
    axes.set(xscale="log", xlabel="times fewer bytes than dense", ylabel="accuracy at the end")
    axes.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    axes.minorticks_off()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False, ncols=2)


def accuracy_by_shares(figure: Any) -> None:
    """Plot the metric at the end by how much workers' shares differ: mean and spread over seeds."""
    from peelsum.bench.accuracy.rows import Request, read_runs, rows_of

    rows = rows_of(list(read_runs(RESULTS / "accuracy.json").values()), [1.0], Request().latency_s)
    for axes, model in zip(figure.subplots(1, 2), ("digits", "ratings"), strict=True):
        mine = {(row.method, row.shares): row for row in rows if (row.model, row.workers) == (model, 4)}
        for number, method in enumerate(_SHOWN_BY_SHARES):
            found = [mine[method, shares] for shares in _SHARES]
            at = [place + 0.06 * (number - 3.5) for place in range(len(found))]
            # A run that ended in values that are not finite has no point.
            values = [math.nan if row.final is None else row.final for row in found]
            spreads = [row.final_spread or 0.0 for row in found]
            axes.errorbar(at, values, spreads, fmt="o", ms=4, elinewidth=0.8, label=method)
        names = ["IID" if shares == "iid" else f"alpha {shares}" for shares in _SHARES]
        axes.set_xticks(range(len(_SHARES)), names)
        axes.set(title=model, ylabel=f"{found[0].metric} at the end")
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right center", frameon=False)


_LINES = {
    "peelsum": "C0",
    "switchml": "C1",
    "atp": "C2",
    "ring": "C3",
    "binomial": "C4",
    "parameter_server": "C5",
    "sharded_server": "C6",
}


def simulated_scale(figure: Any) -> None:
    """Plot the time of a sum by workers: marks from packets, lines by formula."""
    axes, rows = figure.subplots(), _read("simulation_scale")
    for name, color in _LINES.items():
        for level, style in (("formula", "-"), ("packet", "o")):
            mine = [
                (row["workers"], row["seconds"] * 1e3)
                for row in rows
                if (row["algorithm"], row["level"]) == (name, level)
            ]
            if mine:
                axes.plot(*zip(*mine, strict=True), style, color=color, label=name if style == "-" else None)
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="ms a sum of 4 MiB at 100 Gbit/s")
    axes.set_xticks([4, 16, 64, 256, 1024, 10_000], ["4", "16", "64", "256", "1,024", "10,000"])
    axes.minorticks_off()
    axes.legend(frameon=False)


def simulated_slots_and_loss(figure: Any) -> None:
    """Plot the share summed in the switch by slots, and goodput by loss."""
    left, right = figure.subplots(1, 2)
    rows = _read("simulation_slots")
    for name in ("peelsum", "atp"):
        for jobs, style in ((1, "o-"), (2, "s--")):
            mine = [
                (row["slots"], row["in_switch"])
                for row in rows
                if (row["algorithm"], row["jobs"]) == (name, jobs)
            ]
            if mine:
                label = name + (", 2 jobs" if jobs == 2 else "")
                left.plot(*zip(*mine, strict=True), style, color=_LINES[name], label=label)
    left.set(xscale="log", xlabel="slots", ylabel="share summed in the switch", ylim=(0, 1.05))
    for name in ("peelsum", "switchml", "atp", "ring"):
        for timers, style in (("quick", "o-"), ("default", "o:")):
            mine = [
                (100 * row["loss"], row["goodput_gbps"])
                for row in _read("simulation_loss")
                if (row["algorithm"], row["timers"]) == (name, timers)
            ]
            if mine:
                label = name + (", default timers" if timers == "default" else "")
                right.plot(*zip(*mine, strict=True), style, color=_LINES[name], label=label)
    right.set(xlabel="% of packets lost on each link", ylabel="Gbit/s summed", ylim=(0, 100))
    for axes in (left, right):
        axes.legend(frameon=False)


def simulated_density(figure: Any) -> None:
    """Plot the network's time of a sparse sum by density and encoding."""
    axes, rows = figure.subplots(), _read("simulation_density")
    for number, name in enumerate(dict.fromkeys(row["algorithm"] for row in rows)):
        mine = [(100 * row["density"], row["seconds"] * 1e6) for row in rows if row["algorithm"] == name]
        axes.plot(*zip(*mine, strict=True), "o-", color=f"C{number}", label=name)
    axes.set(xscale="log", yscale="log", xlabel="% non-zero at a worker", ylabel="us on the network")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False)


def _by_model(runs: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of each command that measures rates, by a short name of its model."""
    named = {}
    for command, rows in runs.items():
        if "--gbps 0.1,1,10 --steps" in command:
            named[rows[0]["model"] + (" top 1%" if "--top-k" in command else "")] = rows
    return named


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def draw(name: str, title: str, content: Callable[[Any], None], width: float, height: float = 3.4) -> Path:
    """Draw one SVG in docs/figures; return its path."""
    figure = plt.figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontweight="bold")
    content(figure)
    FIGURES.mkdir(exist_ok=True)
    path = FIGURES / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return path


def draw_all() -> Iterator[Path]:
    """Draw all figures; yield their paths."""
    for name, title, content, width in (
        ("switch-rate", "Contributions a second through one switch", rate_of_a_switch, 8),
        ("switch-profile", "Time of a contribution, by part", parts_of_a_packet, 8),
        ("training", "Training through the switch, by the rate of the links", training, 11),
        ("codec-size", "Size of an encoded tensor, by density", size_of_forms, 9),
        ("codec-recovery", "What peeling recovers, by size of the sketch", recovery, 6),
        ("simulation-scale", "A sum by workers: packets (marks), formulas (lines)", simulated_scale, 6),
        ("simulation-slots-loss", "Sums with few slots, and with loss", simulated_slots_and_loss, 9),
        ("simulation-density", "A sparse sum on the network, by density", simulated_density, 6),
    ):
        yield draw(name, title, content, width)
    yield draw("accuracy", "Learning over modelled time", accuracy, width=10, height=5.7)
    yield draw("accuracy-bytes", "Accuracy of digits by bytes saved", bytes_and_accuracy, width=9)
    yield draw("accuracy-shares", "Learning from shares that differ", accuracy_by_shares, width=9)


if __name__ == "__main__":
    for drawn in draw_all():
        print(drawn)

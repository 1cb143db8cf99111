"""`peelsum demo`: shows the progress of the training processes, and compares sparse with dense gradients."""

from __future__ import annotations

import json as json_
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import typer

from peelsum.cli.demo.processes import DemoSettings, Processes, Reports
from peelsum.cli.demo.worker import SentAs
from peelsum.cli.options import Json
from peelsum.cli.output import progress_bar, table_of
from peelsum.cli.settings import with_settings
from peelsum.extras import missing
from peelsum.processes import Child
from peelsum.processes.interrupts import Interruption
from peelsum.processes.progress import Tell, taking_time
from peelsum.processes.reports import told
from peelsum.processes.user_errors import reported
from peelsum.topology import Star, TopologyError

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

#: Bytes of Ethernet, IPv4 and UDP headers around a packet.
FRAME_BYTES = 42
#: How long a worker may print nothing, in seconds. On the first run, Numba may have to compile everything.
PATIENCE_S = 120.0
#: Width of the bars in the table.
_BAR = 12


@dataclass
class Tally:
    """The workers' reports of one training; lists have one entry for each step, of all workers."""

    steps: list[Reports] = field(default_factory=list)
    totals: Reports = field(default_factory=list)
    seconds: float = 0.0

    def mean(self, name: str, steps: slice = slice(None)) -> float:
        """Return the mean of a value over steps and workers."""
        values = [report[name] for step in self.steps[steps] for report in step]
        return float(sum(values) / len(values))

    def sum(self, name: str) -> int:
        """Return the sum of a count over steps and workers."""
        return sum(report[name] for step in self.steps for report in step)

    def total(self, name: str) -> int:
        """Return the sum of a count of the whole training over workers."""
        return sum(total[name] for total in self.totals)


@with_settings
def command(settings: DemoSettings, json: Json = False) -> None:
    """Train a language model on several workers, whose gradients the switch program sums.

    Sparse gradients travel as sketches, which the switch adds and every
    worker peels. Then the same steps are repeated with dense gradients, to
    compare bytes and time. Every sum is compared, bit for bit, with gloo's sum
    of the same integers.
    """
    if find_spec("torch") is None:
        raise typer.BadParameter(missing("torch", "demo"))
    with reported(TopologyError), Interruption() as interruption, ExitStack() as stack:
        processes = Processes(stack, interruption, PATIENCE_S)
        values = run(processes, settings, told())
    if json:
        print(json_.dumps(values))
    else:
        from rich.console import Console

        Console().print(_comparison(values), _facts(values), sep="")


def run(processes: Processes, settings: DemoSettings, tell: Tell) -> dict[str, Any]:
    """Train; return the results that `--json` prints. `tell`: reports progress without a terminal."""
    from rich.console import Console

    with progress_bar(Console(stderr=True)) as progress:
        tell_aside = tell if progress.disable else lambda _: None
        started = f"starting switch, controller, server, {settings.workers} workers"
        starting = progress.add_task(started, total=None)
        if not progress.disable:
            Child.on_work = staticmethod(lambda text: progress.update(starting, description=text))
        with taking_time(started, tell_aside):
            star = processes.start(settings)
        progress.remove_task(starting)
        Child.on_work = staticmethod(tell)
        tallies = []
        for sent_as in (settings.form, "dense"):
            with taking_time(f"training, {sent_as}", tell_aside):
                tallies.append(
                    _follow(processes, settings.steps, progress, f"training, {sent_as}", tell_aside)
                )
        star.close()
    return _summary(settings.workers, settings.form, star, *tallies)


def _follow(processes: Processes, steps: int, progress: Progress, training: str, tell: Tell) -> Tally:
    tally = Tally()
    task = progress.add_task(training, total=steps)
    started = time.monotonic()
    for step in range(1, steps + 1):
        tally.steps.append(processes.gather_reports())
        described = f"{training}, loss {tally.mean('loss', slice(-1, None)):.2f}"
        progress.update(task, advance=1, description=described)
        tell(f"{training}: {time.monotonic() - started:.0f} s, step {step} of {steps}")
    tally.seconds = time.monotonic() - started
    tally.totals = processes.gather_reports()
    return tally


def _summary(workers: int, form: SentAs, star: Star, sparse: Tally, dense: Tally) -> dict[str, Any]:
    assert star.report is not None
    packet_bytes = FRAME_BYTES + 16 + 4 * star.seats[0].admission["lanes"]
    ours, theirs = _costs(sparse, packet_bytes), _costs(dense, packet_bytes)
    words, bound = sparse.sum("sparse_words"), sparse.sum("bound_words")
    return {
        "exact": True,  # or a worker would have ended
        "tensors_checked": sparse.sum("tensors") + dense.sum("tensors"),
        "workers": workers,
        "steps": len(sparse.steps),
        "form": form,
        "elements": dense.steps[-1][0]["elements"],
        "density": round(dense.mean("density"), 5),
        **{name: sparse.sum(name) // workers for name in ("candidates", "cells", "left_over")},
        "over_lower_bound": round(words / bound, 4) if bound else None,
        "sparse": ours,
        "dense": theirs,
        "bytes_ratio": round(theirs["wire_bytes_per_worker"] / ours["wire_bytes_per_worker"], 2),
        "time_ratio": round(theirs["sum_ms_per_step"] / ours["sum_ms_per_step"], 2),
        "chunks_in_switch": star.report.server["chunks_in_switch"],
        "chunks_at_server": star.report.server["chunks_at_server"],
    }


def _costs(tally: Tally, packet_bytes: int) -> dict[str, Any]:
    """Return the losses of one training, and the cost of its sums."""
    times = {part: 1e3 * tally.mean(f"{part}_s") for part in ("encode", "network", "decode")}
    return {
        "loss_start": round(tally.mean("loss", slice(0, 1)), 4),
        "loss_end": round(tally.mean("loss", slice(-1, None)), 4),
        "wire_bytes_per_worker": tally.total("sent_packets") * packet_bytes // len(tally.totals),
        "resends": tally.total("resends"),
        "sum_ms_per_step": round(sum(times.values()), 2),
        **{f"{part}_ms_per_step": round(ms, 2) for part, ms in times.items()},
        "seconds": round(tally.seconds, 2),
    }


def _comparison(values: dict[str, Any]) -> Table:
    """Return a table of both trainings, with bars of their bytes and times."""
    from rich.progress_bar import ProgressBar

    title = f"{values['workers']} workers train a language model, {values['steps']} steps"
    headings = "gradients", "loss", "sent per worker", "", "time of a sum", " "
    table = table_of(headings, left=headings[:3] + headings[4:5], title=title)
    ours, theirs = values["sparse"], values["dense"]
    measures = ("wire_bytes_per_worker", 1e6, "MB"), ("sum_ms_per_step", 1, "ms")
    for name, one, style in (values["form"], ours, "green"), ("dense", theirs, "yellow"):
        row: list[Any] = [name, f"{one['loss_start']:.2f} -> {one['loss_end']:.2f}"]
        for measure, unit, symbol in measures:
            most = max(ours[measure], theirs[measure])
            bar = ProgressBar(most, one[measure], _BAR, complete_style=style, finished_style=style)
            row += [bar, f"{one[measure] / unit:,.1f} {symbol}"]
        table.add_row(*row)
    table.add_row("ratio", "", "", f"1 : {values['bytes_ratio']:.1f}", "", f"1 : {values['time_ratio']:.1f}")
    return table


def _facts(values: dict[str, Any]) -> Table:
    """Return a table of the gradients, the sketch, and who summed it."""
    table = table_of(("", " "), left=("", " "), show_header=False)
    table.add_row("density", f"{values['density']:.1%} of {values['elements']:,} elements are not zero")
    if values["cells"]:
        cells, candidates, left = (values[name] for name in ("cells", "candidates", "left_over"))
        each = f"{cells / candidates:.2f} each"
        table.add_row("sketches", f"{cells:,} cells for {candidates:,} candidates, {each}")
        table.add_row("peeled", f"{1 - left / candidates:.2%}, left over {left:,}")
    if values["over_lower_bound"]:
        table.add_row("words", f"{values['over_lower_bound']:.2f} times the lower bound")
    times = (values["sparse"][f"{part}_ms_per_step"] for part in ("encode", "network", "decode"))
    table.add_row("time of a sum", "encode {:.1f}, network {:.1f}, decode {:.1f} ms".format(*times))
    inside, outside = values["chunks_in_switch"], values["chunks_at_server"]
    resends = values["sparse"]["resends"] + values["dense"]["resends"]
    table.add_row("switch", f"summed {inside:,} of {inside + outside:,} chunks; sent again: {resends:,}")
    table.add_row("exact", f"all {values['tensors_checked']:,} sums equal gloo's, bit for bit", style="green")
    return table

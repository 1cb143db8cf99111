"""`peelsum demo`: show the progress of both trainings, and compare sparse with dense gradients."""

from __future__ import annotations

import json as json_
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.cli.demo.worker import SparseForm
from peelsum.cli.options import Json, with_settings
from peelsum.cli.output import empty_table, progress_bar
from peelsum.extras import missing_extra_message
from peelsum.options import CommandSettings, Option
from peelsum.processes import Child
from peelsum.processes.children import gather_reports
from peelsum.processes.progress import ProgressCallback, progress_reporter, reporting_progress
from peelsum.processes.user_errors import InterruptContext, exit_on_errors
from peelsum.topology import Star, TopologyError

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

#: Bytes of Ethernet, IPv4 and UDP headers around a packet.
FRAME_BYTES = 42
#: Seconds for which all workers may print nothing. On the first run, Numba may have to compile everything.
SILENCE_TIMEOUT_S = 120.0
#: Width of the bars in the table.
_BAR_WIDTH = 12


_FORM = Option(
    "Form of sparse gradients: a sketch, or their non-zeros (compact). With auto, the cheapest of all forms "
    "for each tensor."
)
_LOSS = Option("Share of datagrams that each switch port loses in each direction, up to 0.3.", 0, 0.3)


@dataclass(frozen=True)
class DemoSettings(CommandSettings):
    """The demo's two trainings."""

    workers: Annotated[int, Option("Number of workers, 2 to 8.", 2, 8)] = 4
    steps: Annotated[int, Option("Steps of each of the two trainings.", 1, 1_000_000)] = 20
    form: Annotated[SparseForm, _FORM] = "sketch"
    loss: Annotated[float, _LOSS] = 0.0
    seed: Annotated[int, Option("Seed of the model, the batches and the lost packets.", 0, 2**31 - 1)] = 0


class Processes:
    """Training processes at a star. `stack` ends them; `timeout_s` is how long they may print nothing."""

    def __init__(self, stack: ExitStack, interruption: InterruptContext, timeout_s: float) -> None:
        self._stack, self._interruption, self._timeout_s = stack, interruption, timeout_s
        self._workers: list[Child] = []
        self._star: Star | None = None

    def start(self, settings: DemoSettings) -> Star:
        """Start all processes; return the star once every worker is ready for its first step."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="peelsum-"))
        options = {**asdict(settings), "store": Path(folder) / "gloo"}
        loss = options.pop("loss")
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        for worker in range(settings.workers):  # workers prepare their models while the star starts
            name = f"worker {worker}"
            child = Child.peelsum(name, "demo-worker", "--worker-id", str(worker), *arguments)
            self._workers.append(child)
            self._stack.callback(child.stop)
        star = Star(settings.workers, loss=loss, seed=settings.seed)
        self._star = self._stack.enter_context(star)
        self.gather_reports()
        for child, seat in zip(self._workers, self._star.seats, strict=True):
            child.send(**asdict(seat))
        self.gather_reports()
        return self._star

    def gather_reports(self) -> list[dict[str, Any]]:
        """Return the next report of every worker.

        Raises ProcessError if a process fails or all workers are silent, and Interrupted after a signal.
        """
        return gather_reports(self._workers, self._check, self._timeout_s)

    def _check(self) -> None:
        self._interruption.check()
        if self._star is not None:
            self._star.check()


@dataclass
class TrainingReports:
    """The workers' reports of one training."""

    steps: list[list[dict[str, Any]]] = field(default_factory=list)
    """The reports of each step, by worker."""
    totals: list[dict[str, Any]] = field(default_factory=list)
    """The reports at the end of the training, by worker."""
    seconds: float = 0.0
    """Duration of the training."""

    def mean(self, name: str, steps: slice = slice(None)) -> float:
        """Return the mean of a value over steps and workers."""
        values = [report[name] for step in self.steps[steps] for report in step]
        return float(sum(values) / len(values))

    def sum(self, name: str) -> int:
        """Return the sum of a count over steps and workers."""
        return sum(report[name] for step in self.steps for report in step)

    def total(self, name: str) -> int:
        """Return the sum over workers of a count that they report at the end."""
        return sum(total[name] for total in self.totals)


@with_settings
def command(settings: DemoSettings, json: Json = False) -> None:
    """Train a language model on several workers; the switch program sums their gradients.

    Sparse gradients are sent as sketches, which the switch adds and every
    worker peels. Then the same steps are repeated with dense gradients, to
    compare bytes and time. Every sum is compared, bit for bit, with gloo's sum
    of the same integers.
    """
    if find_spec("torch") is None:
        raise typer.BadParameter(missing_extra_message("torch", "demo"))
    with exit_on_errors(TopologyError), InterruptContext() as interruption, ExitStack() as stack:
        processes = Processes(stack, interruption, SILENCE_TIMEOUT_S)
        values = run(processes, settings, progress_reporter())
    if json:
        print(json_.dumps(values))
    else:
        from rich.console import Console

        Console().print(_comparison(values), _facts(values), sep="")


def run(processes: Processes, settings: DemoSettings, tell: ProgressCallback) -> dict[str, Any]:
    """Run both trainings; return the results that `--json` prints.

    tell: reports progress where there is no terminal for a progress bar.
    """
    from rich.console import Console

    with progress_bar(Console(stderr=True)) as progress:
        tell_without_bar = tell if progress.disable else lambda _: None
        start = f"starting switch, controller, server, {settings.workers} workers"
        task = progress.add_task(start, total=None)
        if not progress.disable:
            Child.on_progress = staticmethod(lambda text: progress.update(task, description=text))
        with reporting_progress(start, tell_without_bar):
            star = processes.start(settings)
        progress.remove_task(task)
        Child.on_progress = staticmethod(tell)
        trainings = []
        for form in (settings.form, "dense"):
            name = f"training, {form}"
            with reporting_progress(name, tell_without_bar):
                trainings.append(_follow(processes, settings.steps, progress, name, tell_without_bar))
        star.close()
    return _summary(settings.workers, settings.form, star, *trainings)


def _follow(
    processes: Processes, steps: int, progress: Progress, name: str, tell: ProgressCallback
) -> TrainingReports:
    """Gather the reports of a training, and show its progress."""
    training = TrainingReports()
    task = progress.add_task(name, total=steps)
    started = time.monotonic()
    for step in range(1, steps + 1):
        training.steps.append(processes.gather_reports())
        loss = training.mean("loss", slice(-1, None))
        progress.update(task, advance=1, description=f"{name}, loss {loss:.2f}")
        tell(f"{name}: {time.monotonic() - started:.0f} s, step {step} of {steps}")
    training.seconds = time.monotonic() - started
    training.totals = processes.gather_reports()
    return training


def _summary(
    workers: int, form: SparseForm, star: Star, sparse: TrainingReports, dense: TrainingReports
) -> dict[str, Any]:
    """Return the results of both trainings, as `--json` prints them."""
    assert star.report is not None
    packet_bytes = FRAME_BYTES + 16 + 4 * star.seats[0].admission["lanes"]
    sparse_costs, dense_costs = _costs(sparse, packet_bytes), _costs(dense, packet_bytes)
    words, bound = sparse.sum("sparse_words"), sparse.sum("bound_words")
    return {
        "exact": True,  # otherwise a worker would have ended with an error
        "tensors_checked": sparse.sum("tensors") + dense.sum("tensors"),
        "workers": workers,
        "steps": len(sparse.steps),
        "form": form,
        "elements": dense.steps[-1][0]["elements"],
        "density": round(dense.mean("density"), 5),
        **{name: sparse.sum(name) // workers for name in ("candidates", "cells", "left_over")},
        "over_lower_bound": round(words / bound, 4) if bound else None,
        "sparse": sparse_costs,
        "dense": dense_costs,
        "bytes_ratio": round(dense_costs["wire_bytes_per_worker"] / sparse_costs["wire_bytes_per_worker"], 2),
        "time_ratio": round(dense_costs["sum_ms_per_step"] / sparse_costs["sum_ms_per_step"], 2),
        "chunks_in_switch": star.report.server["chunks_in_switch"],
        "chunks_at_server": star.report.server["chunks_at_server"],
    }


def _costs(training: TrainingReports, packet_bytes: int) -> dict[str, Any]:
    """Return the model's loss at start and end of a training, and bytes and times of its sums."""
    times = {part: 1e3 * training.mean(f"{part}_s") for part in ("encode", "network", "decode")}
    return {
        "loss_start": round(training.mean("loss", slice(0, 1)), 4),
        "loss_end": round(training.mean("loss", slice(-1, None)), 4),
        "wire_bytes_per_worker": training.total("sent_packets") * packet_bytes // len(training.totals),
        "resends": training.total("resends"),
        "sum_ms_per_step": round(sum(times.values()), 2),
        **{f"{part}_ms_per_step": round(ms, 2) for part, ms in times.items()},
        "seconds": round(training.seconds, 2),
    }


def _comparison(values: dict[str, Any]) -> Table:
    """Return a table of both trainings, with bars of their bytes and times."""
    from rich.progress_bar import ProgressBar

    title = f"{values['workers']} workers train a language model, {values['steps']} steps"
    headings = "gradients", "loss", "sent per worker", "", "time of a sum", " "
    table = empty_table(headings, text_columns=headings[:3] + headings[4:5], title=title)
    sparse, dense = values["sparse"], values["dense"]
    measures = ("wire_bytes_per_worker", 1e6, "MB"), ("sum_ms_per_step", 1, "ms")
    for name, costs, style in (values["form"], sparse, "green"), ("dense", dense, "yellow"):
        row: list[Any] = [name, f"{costs['loss_start']:.2f} -> {costs['loss_end']:.2f}"]
        for measure, unit, symbol in measures:
            longest = max(sparse[measure], dense[measure])
            bar = ProgressBar(longest, costs[measure], _BAR_WIDTH, complete_style=style, finished_style=style)
            row += [bar, f"{costs[measure] / unit:,.1f} {symbol}"]
        table.add_row(*row)
    table.add_row("ratio", "", "", f"1 : {values['bytes_ratio']:.1f}", "", f"1 : {values['time_ratio']:.1f}")
    return table


def _facts(values: dict[str, Any]) -> Table:
    """Return a table of the gradients, the sketches, and how many chunks the switch summed."""
    table = empty_table(("", " "), text_columns=("", " "), show_header=False)
    table.add_row("density", f"{values['density']:.1%} of {values['elements']:,} elements are not zero")
    if values["cells"]:
        cells, candidates, unpeeled = (values[name] for name in ("cells", "candidates", "left_over"))
        ratio = f"{cells / candidates:.2f} each"
        table.add_row("sketches", f"{cells:,} cells for {candidates:,} candidates, {ratio}")
        table.add_row("peeled", f"{1 - unpeeled / candidates:.2%}, left over {unpeeled:,}")
    if values["over_lower_bound"]:
        table.add_row("words", f"{values['over_lower_bound']:.2f} times the lower bound")
    times = (values["sparse"][f"{part}_ms_per_step"] for part in ("encode", "network", "decode"))
    table.add_row("time of a sum", "encode {:.1f}, network {:.1f}, decode {:.1f} ms".format(*times))
    in_switch, at_server = values["chunks_in_switch"], values["chunks_at_server"]
    resends = values["sparse"]["resends"] + values["dense"]["resends"]
    table.add_row(
        "switch", f"summed {in_switch:,} of {in_switch + at_server:,} chunks; sent again: {resends:,}"
    )
    table.add_row("exact", f"all {values['tensors_checked']:,} sums equal gloo's, bit for bit", style="green")
    return table

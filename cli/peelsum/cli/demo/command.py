"""`peelsum demo`: shows the progress of the training processes, and summarizes their reports."""

from __future__ import annotations

import json as json_
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.cli.demo.processes import Processes, Reports
from peelsum.cli.options import Json, within, without_torch
from peelsum.topology import Child, Star, TopologyError
from peelsum.topology.interrupts import Interruption
from peelsum.topology.progress import Tell, taking_time
from peelsum.topology.telling import told
from peelsum.topology.user_errors import reported

if TYPE_CHECKING:
    from rich.progress import Progress

#: Bytes of Ethernet, IPv4 and UDP headers around a packet.
FRAME_BYTES = 42
#: How long a worker may print nothing, in seconds. On the first run, Numba may have to compile everything.
PATIENCE_S = 120.0


class MissingDependencyError(Exception):
    """A package that the demo needs is not installed."""


@dataclass
class Tally:
    """The workers' reports, step by step; lists have one entry for each step, of all workers."""

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


def command(
    workers: Annotated[int, typer.Option(help="Number of workers, 2 to 8.")] = 4,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 40,
    loss: Annotated[
        float,
        typer.Option(help="Share of datagrams that each switch port loses in each direction, up to 0.3."),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the model, the batches and the lost packets.")] = 0,
    json: Json = False,
) -> None:
    """Train a language model on several workers, whose gradients the switch program sums.

    Every sum is compared, bit for bit, with gloo's sum of the same integers.
    """
    within("--workers", workers, 2, 8)
    within("--steps", steps, 1, 1_000_000)
    within("--loss", loss, 0, 0.3)
    within("--seed", seed, 0, 2**31 - 1)
    with reported(TopologyError, MissingDependencyError), Interruption() as interruption:
        if find_spec("torch") is None:
            raise MissingDependencyError(without_torch("demo"))
        with ExitStack() as stack:
            processes = Processes(stack, interruption, PATIENCE_S)
            values = run(processes, workers, steps, loss, seed, told(json=json))
    if json:
        print(json_.dumps(values))
    else:
        _print_table(values)
    if not values["exact"]:
        raise SystemExit(1)


def run(processes: Processes, workers: int, steps: int, loss: float, seed: int, tell: Tell) -> dict[str, Any]:
    """Train; return the results that `--json` prints. `tell`: reports progress without a terminal."""
    with _progress() as progress:
        started = f"starting switch, controller, server, {workers} workers"
        starting = progress.add_task(started, total=None)
        if not progress.disable:
            Child.on_work = staticmethod(lambda text: progress.update(starting, description=text))
        with taking_time(started, tell if progress.disable else lambda _: None):
            star = processes.start(workers, steps, loss, seed)
        progress.remove_task(starting)
        Child.on_work = staticmethod(tell)
        tally = _follow(processes, steps, progress)
        star.close()
    return _summary(workers, star, tally)


def _follow(processes: Processes, steps: int, progress: Progress) -> Tally:
    tally = Tally()
    task = progress.add_task("training", total=steps)
    started = time.monotonic()
    for _ in range(steps):
        tally.steps.append(processes.gather_reports())
        described = f"training, loss {tally.mean('loss', slice(-1, None)):.2f}"
        progress.update(task, advance=1, description=described)
    tally.seconds = time.monotonic() - started
    tally.totals = processes.gather_reports()
    return tally


def _summary(workers: int, star: Star, tally: Tally) -> dict[str, Any]:
    assert star.report is not None
    checked, equal = tally.sum("tensors"), tally.sum("equal")
    packet_bytes = FRAME_BYTES + 16 + 4 * star.seats[0].admission["lanes"]
    last = tally.steps[-1][0]
    return {
        "exact": equal == checked,
        "tensors_checked": checked,
        "tensors_exact": equal,
        "workers": workers,
        "steps": len(tally.steps),
        "loss_start": round(tally.mean("loss", slice(0, 1)), 4),
        "loss_end": round(tally.mean("loss", slice(-1, None)), 4),
        "density": round(tally.mean("density"), 5),
        "density_embedding": round(tally.mean("sparse_density"), 5),
        "wire_bytes_per_worker": sum(t["sent_packets"] for t in tally.totals) * packet_bytes // workers,
        "dense_bytes_per_worker": 4 * last["elements"] * len(tally.steps),
        "chunks_in_switch": star.report.server["chunks_in_switch"],
        "chunks_at_server": star.report.server["chunks_at_server"],
        "resends": sum(total["resends"] for total in tally.totals),
        "encode_ms_per_step": round(1e3 * tally.mean("encode_s"), 2),
        "network_ms_per_step": round(1e3 * tally.mean("network_s"), 2),
        "decode_ms_per_step": round(1e3 * tally.mean("decode_s"), 2),
        "seconds": round(tally.seconds, 2),
    }


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())


def _print_table(values: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    wire, dense = values["wire_bytes_per_worker"], values["dense_bytes_per_worker"]
    chunks = values["chunks_in_switch"] + values["chunks_at_server"]
    table = Table(show_header=False, title=f"{values['workers']} workers, {values['steps']} steps")
    table.add_row("loss", f"{values['loss_start']:.2f} -> {values['loss_end']:.2f} nats a word")
    table.add_row(
        "density of gradients", f"{values['density']:.1%} (embedding: {values['density_embedding']:.1%})"
    )
    table.add_row("sent per worker", f"{wire / 1e6:.1f} MB in frames; dense float32: {dense / 1e6:.1f} MB")
    table.add_row("summed in the switch", f"{values['chunks_in_switch']:,} of {chunks:,} chunks")
    table.add_row("summed by the server", f"{values['chunks_at_server']:,} (resends: {values['resends']:,})")
    times = (values[f"{part}_ms_per_step"] for part in ("encode", "network", "decode"))
    table.add_row("encode / network / decode", " / ".join(f"{ms:.1f}" for ms in times) + " ms a step")
    table.add_row("time", f"{values['seconds']:.1f} s")
    exact, checked = values["tensors_exact"], values["tensors_checked"]
    table.add_row("exact", f"{exact:,} of {checked:,} sums equal gloo's, bit for bit")
    Console().print(table)

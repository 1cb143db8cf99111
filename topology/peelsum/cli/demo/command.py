"""`peelsum demo`: starts the star and the workers, shows progress, and sums up."""

from __future__ import annotations

import json as json_
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.cli.errors import reported
from peelsum.cli.options import Json, within
from peelsum.topology import Child, ProcessError, Star, TopologyError

if TYPE_CHECKING:
    from rich.progress import Progress

#: Bytes of Ethernet, IPv4 and UDP headers around a packet.
FRAME_BYTES = 42
POLL_S = 0.05


class MissingDependencyError(Exception):
    """Something that the demo needs is not installed."""


@dataclass
class Tally:
    """What the workers reported, step by step; lists have one entry a step, of all workers."""

    steps: list[list[dict[str, Any]]] = field(default_factory=list)
    totals: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def mean(self, name: str, steps: slice = slice(None)) -> float:
        """The mean of a value over steps and workers."""
        values = [report[name] for step in self.steps[steps] for report in step]
        return float(sum(values) / len(values))


def command(
    workers: Annotated[int, typer.Option(help="Processes that train, 2 to 8.")] = 4,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 40,
    loss: Annotated[
        float, typer.Option(help="Share of datagrams that each switch port loses, each way, up to 0.3.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the model, the batches and the losses.")] = 0,
    json: Json = False,
) -> None:
    """Train a language model on several workers, their gradients summed by the switch program.

    Every sum is compared, bit for bit, with gloo's sum of the same integers.
    """
    within("--workers", workers, 2, 8)
    within("--steps", steps, 1, 1_000_000)
    within("--loss", loss, 0, 0.3)
    within("--seed", seed, 0, 2**31 - 1)
    with reported(TopologyError, MissingDependencyError):
        if find_spec("torch") is None:
            raise MissingDependencyError("torch: is not installed; run: pip install 'peelsum[demo]'")
        values = _run(workers, steps, loss, seed)
    if json:
        print(json_.dumps(values))
    else:
        _print_table(values)


def _run(workers: int, steps: int, loss: float, seed: int) -> dict[str, Any]:
    from peelsum.codec import warm_up

    with ExitStack() as stack:
        progress = stack.enter_context(_progress())
        starting = progress.add_task(f"starting switch, controller, server, {workers} workers", total=None)
        store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peelsum-"))) / "gloo"
        options = (
            "--workers",
            str(workers),
            "--store",
            str(store),
            "--steps",
            str(steps),
            "--seed",
            str(seed),
        )
        children = [_start_worker(stack, worker, options) for worker in range(workers)]
        star = stack.enter_context(Star(workers, loss=loss, seed=seed))
        warm_up()  # once here, so that the workers find the codec compiled
        for child, seat in zip(children, star.seats, strict=True):
            child.tell(**asdict(seat))
        _gather(star, children)
        progress.remove_task(starting)
        tally = Tally()
        _follow(star, children, steps, progress, tally)
        star.close()
    return _summary(workers, star, tally)


def _start_worker(stack: ExitStack, worker_id: int, options: Sequence[str]) -> Child:
    """Start a worker, which gets its model ready while the star starts."""
    child = Child.peelsum(f"worker {worker_id}", "demo-worker", "--worker-id", str(worker_id), *options)
    stack.callback(child.stop)
    return child


def _follow(star: Star, children: list[Child], steps: int, progress: Progress, tally: Tally) -> None:
    task = progress.add_task("training", total=steps)
    started = time.monotonic()
    for _ in range(steps):
        tally.steps.append(_gather(star, children))
        progress.update(
            task, advance=1, description=f"training, loss {tally.mean('loss', slice(-1, None)):.2f}"
        )
    tally.seconds = time.monotonic() - started
    tally.totals = _gather(star, children)


def _gather(star: Star, children: Sequence[Child]) -> list[dict[str, Any]]:
    """The next report of every worker. Raises ProcessError as soon as any process has failed."""
    lines: dict[str, dict[str, Any]] = {}
    while len(lines) < len(children):
        star.check()
        for child in children:
            if child.name not in lines and child.has_line(POLL_S):
                line = child.next_line(0)
                if line is None:
                    raise ProcessError(f"{child.name}: ended early")
                lines[child.name] = line
    return [lines[child.name] for child in children]


def _summary(workers: int, star: Star, tally: Tally) -> dict[str, Any]:
    assert star.report is not None
    tensors_checked = sum(report["checked"] for step in tally.steps for report in step)
    packet_bytes = FRAME_BYTES + 16 + 4 * star.seats[0].admission["lanes"]
    last = tally.steps[-1][0]
    return {
        "exact": True,  # a sum that is not has ended the run
        "tensors_checked": tensors_checked,
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
    checked = values["tensors_checked"]
    table.add_row("exact", f"{checked:,} of {checked:,} sums equal gloo's, bit for bit")
    Console().print(table)

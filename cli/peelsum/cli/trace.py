"""`peelsum trace`: record the gradients of a training run, and show what a trace holds."""

from __future__ import annotations

import json as json_format
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.cli.options import Json
from peelsum.cli.output import measuring, print_json, table_of
from peelsum.cli.settings import with_settings
from peelsum.extras import missing
from peelsum.options import Option, Settings

if TYPE_CHECKING:
    from peelsum.processes.progress import Tell
    from peelsum.traces import Trace

app = typer.Typer(help="Record gradients, and replay them without torch.", no_args_is_help=True)


@dataclass(frozen=True)
class _Recording(Settings):
    """What is recorded, and where to."""

    out: Annotated[Path, Option("Folder for a file of each worker.")] = Path("trace")
    model: Annotated[
        str | None,
        Option("Model to train in place of a command: ncf, lstm, vgg19, bert, or MODULE:FUNCTION."),
    ] = None
    workers: Annotated[int, Option("Number of workers that train --model.", 1, 1024)] = 4
    steps: Annotated[int, Option("Steps to record.", 1, 1_000_000)] = 50
    values: Annotated[bool, Option("Record values too, 4 bytes each.", name="--values")] = False
    seed: Annotated[int, Option("Seed of --model's parameters and batches.", 0, 2**31)] = 0


@app.command("record", context_settings={"allow_interspersed_args": False})
@with_settings
def record(
    command: Annotated[
        list[str] | None, typer.Argument(help="A command whose ranks use SwitchAllreduceState.")
    ] = None,
    *,
    settings: _Recording,
) -> None:
    """Record the gradients of a training run as they are summed: supports, scales, buckets, times.

    Put options before the command.
    """
    from peelsum.traces import TraceError, read_folder

    if (settings.model is None) == (not command):
        raise typer.BadParameter("COMMAND: give a command or --model, and not both")
    with measuring(TraceError) as tell:
        if settings.model is None:
            _run(command or [], settings)
        else:
            _train(settings.model, settings, tell)
        print(_line(read_folder(settings.out)[0], settings.out), flush=True)


@app.command("show")
def show(folder: Annotated[Path, typer.Argument(help="A trace's folder.")], json: Json = False) -> None:
    """Show a trace's tensors: shapes, buckets, shares of non-zeros."""
    from rich.console import Console

    from peelsum.traces import TraceError, read_folder

    with measuring(TraceError):
        traces = read_folder(folder)
        rows = _rows(traces)
        if json:
            print_json({"name": traces[0].name, "workers": len(traces), "tensors": rows})
            return
        headings = ("tensor", "shape", "bucket", "non-zero, a worker", "on any")
        table = table_of(headings, left=("tensor", "shape"), caption=_line(traces[0], folder))
        for row in rows:
            shares = (f"{row['worker']:.3%}", f"{row['union']:.3%}")
            table.add_row(row["tensor"], str(row["shape"]), str(row["bucket"]), *shares)
        Console().print(table)


def _run(command: Sequence[str], settings: _Recording) -> None:
    """Run a command whose hooks record. Raises typer.BadParameter if it recorded nothing."""
    from peelsum.torch.tracing import TRACE
    from peelsum.traces import SUFFIX

    _clear(settings.out)
    what = {"name": Path(command[-1]).name, "steps": settings.steps, "values": settings.values}
    recording = {"folder": str(settings.out.resolve()), **what}
    environment = {**os.environ, TRACE: json_format.dumps(recording)}
    try:
        status = subprocess.run(command, env=environment, check=False).returncode
    except OSError as error:
        raise typer.BadParameter(f"{command[0]}: {error.strerror}; give a command that can be run") from None
    if status:
        raise typer.Exit(status if status > 0 else 128 - status)
    if not list(settings.out.glob(f"*{SUFFIX}")):
        raise typer.BadParameter(f"{command[0]}: recorded nothing; its ranks must use SwitchAllreduceState")


def _train(model: str, settings: _Recording, tell: Tell) -> None:
    if find_spec("torch") is None:
        raise typer.BadParameter(missing("torch", "training"))
    from peelsum.traces import SUFFIX, write
    from peelsum.training import TrainingDataError, make_task
    from peelsum.training.recording import record as record_model

    def told(step: int) -> None:
        tell(f"{model}: step {step} of {settings.steps}")

    try:
        task = make_task(model, seed=settings.seed)
    except TrainingDataError as error:
        raise typer.BadParameter(str(error)) from None
    traces = record_model(
        task, settings.workers, settings.steps, seed=settings.seed, values=settings.values, tell=told
    )
    _clear(settings.out)
    for trace in traces:
        write(trace, settings.out / f"worker-{trace.worker}{SUFFIX}")


def _clear(folder: Path) -> None:
    from peelsum.traces import SUFFIX

    for path in folder.glob(f"*{SUFFIX}"):
        path.unlink()


def _line(trace: Trace, folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.iterdir())
    return (
        f"{trace.name}: {trace.workers} workers, {trace.steps} steps, {sum(trace.elements):,} elements, "
        f"{size / 1e6:.2f} MB in {folder}"
    )


def _rows(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Return a row per tensor; shares of non-zeros are means over steps."""
    import numpy as np

    from peelsum.traces import union_count

    first, rows = traces[0], []
    for tensor, (name, shape) in enumerate(zip(first.names, first.shapes, strict=True)):
        elements = max(first.elements[tensor], 1)
        alone = [trace.count[:, tensor].mean() / elements if trace.steps else 0.0 for trace in traces]
        unions = [union_count(traces, step, tensor) / elements for step in range(first.steps)]
        rows.append(
            {
                "tensor": name,
                "shape": list(shape),
                "bucket": int(first.bucket[-1, tensor]) if first.steps else -1,
                "worker": float(np.mean(alone)),
                "union": float(np.mean(unions)) if unions else 0.0,
            }
        )
    return rows

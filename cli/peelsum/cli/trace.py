"""`peelsum trace`: record the gradients of a training run, and show a recorded trace."""

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

from peelsum.cli.options import Json, with_settings
from peelsum.cli.output import empty_table, measuring, print_json
from peelsum.extras import missing_extra_message
from peelsum.options import CommandSettings, Option

if TYPE_CHECKING:
    from peelsum.processes.progress import ProgressCallback
    from peelsum.traces import Trace

app = typer.Typer(
    help="Record the gradients of a training run, and show recorded ones.", no_args_is_help=True
)


@dataclass(frozen=True)
class _Recording(CommandSettings):
    """The training to record, and the trace's folder."""

    out: Annotated[Path, Option("Folder of the trace, which has a file for each worker.")] = Path("trace")
    model: Annotated[
        str | None,
        Option("Model to train instead of a command: ncf, lstm, vgg19, bert, or MODULE:FUNCTION."),
    ] = None
    workers: Annotated[int, Option("Number of workers that train --model.", 1, 1024)] = 4
    steps: Annotated[int, Option("Steps to record.", 1, 1_000_000)] = 50
    values: Annotated[bool, Option("Record values too, 4 bytes for each non-zero.", name="--values")] = False
    seed: Annotated[int, Option("Seed of --model's parameters and batches.", 0, 2**31)] = 0


@app.command("record", context_settings={"allow_interspersed_args": False})
@with_settings
def record(
    command: Annotated[
        list[str] | None, typer.Argument(help="A training command whose ranks use SwitchAllreduceState.")
    ] = None,
    *,
    settings: _Recording,
) -> None:
    """Record the gradients of a training run: positions of non-zeros, scales, buckets, times.

    Put options before the command.
    """
    from peelsum.traces import TraceError, read_folder

    if (settings.model is None) == (not command):
        raise typer.BadParameter("COMMAND: give a command or --model, and not both")
    with measuring(TraceError) as tell:
        if command:
            _record_command(command, settings)
        elif settings.model is not None:
            _record_model(settings.model, settings, tell)
        print(_summary(read_folder(settings.out)[0], settings.out), flush=True)


@app.command("show")
def show(folder: Annotated[Path, typer.Argument(help="A trace's folder.")], json: Json = False) -> None:
    """Show a trace's tensors with their shapes, buckets and shares of non-zeros."""
    import numpy as np
    from rich.console import Console

    from peelsum.traces import TraceError, read_folder, union_count

    with measuring(TraceError):
        traces = read_folder(folder)
        first, rows = traces[0], list[dict[str, Any]]()
        for tensor, (name, shape) in enumerate(zip(first.names, first.shapes, strict=True)):
            # Shares of non-zeros are means over steps.
            elements = max(first.elements[tensor], 1)
            workers = [trace.count[:, tensor].mean() / elements if trace.steps else 0.0 for trace in traces]
            unions = [union_count(traces, step, tensor) / elements for step in range(first.steps)]
            rows.append(
                {
                    "tensor": name,
                    "shape": list(shape),
                    "bucket": int(first.bucket[-1, tensor]) if first.steps else -1,
                    "worker": float(np.mean(workers)),
                    "union": float(np.mean(unions)) if unions else 0.0,
                }
            )
        if json:
            print_json({"name": traces[0].name, "workers": len(traces), "tensors": rows})
            return
        headings = ("tensor", "shape", "bucket", "non-zero on a worker", "on any worker")
        caption = _summary(traces[0], folder)
        table = empty_table(headings, text_columns=("tensor", "shape"), caption=caption)
        for row in rows:
            shares = (f"{row['worker']:.3%}", f"{row['union']:.3%}")
            table.add_row(row["tensor"], str(row["shape"]), str(row["bucket"]), *shares)
        Console().print(table)


def _record_command(command: Sequence[str], settings: _Recording) -> None:
    """Run a training command whose hooks write the trace. Raises BadParameter if it recorded nothing."""
    from peelsum.torch.tracing import TRACE
    from peelsum.traces import SUFFIX

    _clear(settings.out)
    recording = {
        "folder": str(settings.out.resolve()),
        "name": Path(command[-1]).name,
        "steps": settings.steps,
        "values": settings.values,
    }
    environment = {**os.environ, TRACE: json_format.dumps(recording)}
    try:
        status = subprocess.run(command, env=environment, check=False).returncode
    except OSError as error:
        raise typer.BadParameter(f"{command[0]}: {error.strerror}; give a command that can be run") from None
    if status:
        raise typer.Exit(status if status > 0 else 128 - status)
    if not list(settings.out.glob(f"*{SUFFIX}")):
        raise typer.BadParameter(f"{command[0]}: recorded nothing; its ranks must use SwitchAllreduceState")


def _record_model(model: str, settings: _Recording, tell: ProgressCallback) -> None:
    """Train a model for some steps, and write the trace."""
    if find_spec("torch") is None:
        raise typer.BadParameter(missing_extra_message("torch", "training"))
    from peelsum.traces import SUFFIX, write
    from peelsum.training import TrainingDataError, make_task
    from peelsum.training.recording import record as record_model

    try:
        task = make_task(model, seed=settings.seed)
    except TrainingDataError as error:
        raise typer.BadParameter(str(error)) from None
    options: dict[str, Any] = {"seed": settings.seed, "values": settings.values}
    options["on_step"] = lambda step: tell(f"{model}: step {step} of {settings.steps}")
    traces = record_model(task, settings.workers, settings.steps, **options)
    _clear(settings.out)
    for trace in traces:
        write(trace, settings.out / f"worker-{trace.worker}{SUFFIX}")


def _clear(folder: Path) -> None:
    """Remove the files of an earlier trace."""
    from peelsum.traces import SUFFIX

    for path in folder.glob(f"*{SUFFIX}"):
        path.unlink()


def _summary(trace: Trace, folder: Path) -> str:
    """Return a line with a trace's name, sizes and folder."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    return (
        f"{trace.name}: {trace.workers} workers, {trace.steps} steps, {sum(trace.elements):,} elements, "
        f"{size / 1e6:.2f} MB in {folder}"
    )

"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.logs import LogsError, configure, log_event
from peelsum.metrics import PARTS, MetricsError, MetricsServer, Values, controller_values, metrics_address
from peelsum.processes import say
from peelsum.processes.user_errors import reported
from peelsum.tls import Identity, TlsError

if TYPE_CHECKING:
    from peelsum.control.cluster import Event, JobController

#: Seconds between two checks of a job's switches.
LOOK_EVERY_S = 1.0
#: What is wrong with the options below.
OPTION_ERRORS = (TlsError, MetricsError, LogsError)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ChildOf = Annotated[bool, typer.Option("--child", hidden=True, help="End when standard input closes.")]

Tls = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Use TLS, with the identity there: see `peelsum certificates make`."),
]

LogFormat = Annotated[
    str | None,
    typer.Option(metavar="json|console", help="Log events to stderr in this form, with job and generation."),
]

Metrics = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics there; port 0 chooses a free one."),
]


def reporting(*more: type[Exception]) -> AbstractContextManager[None]:
    """Report errors of the control plane, of these options, and `more` in one line, with exit status 2."""
    from peelsum.control import ControlError
    from peelsum.pipelines import PipelineError

    return reported(ControlError, PipelineError, *OPTION_ERRORS, *more)


def serve_metrics(
    stack: ExitStack, where: str | None, part: str, read: Callable[[], Values], tls: Path | None, json: bool
) -> dict[str, str]:
    """Serve a part's metrics at `where`, if given, until the stack is closed; print the address.

    Return what `--json` says of it. Raises MetricsError or TlsError.
    """
    if where is None:
        return {}
    server = stack.enter_context(MetricsServer(metrics_address(where), PARTS[part], read, identity(tls)))
    if not json:
        print(f"metrics at {server.url}", flush=True)
    return {"metrics": server.url}


def logged(
    log_format: str | None, part: str, otherwise: Callable[[object], None], **known: object
) -> Callable[[object], None]:
    """Return what to do with a part's events: log them if a format is given. Raises LogsError."""
    if log_format is None:
        return otherwise
    configure(log_format, part, known)
    return log_event


def event_teller(log_format: str | None, json: bool, **known: object) -> Callable[[Event], None]:
    """Return what logs or prints the events of a controller of one job. Raises LogsError."""

    def show(event: object) -> None:
        if json:
            say(event=str(event))
        else:
            print(event, flush=True)

    log = logged(log_format, "controller", show, **known)

    def tell(event: Event) -> None:
        if event.kind not in ("admitted", "evicted"):  # which the command's own output says
            log(event)

    return tell


def job_values(jobs: JobController, job_id: int) -> Values:
    """Return the values of the metrics of a controller of one job."""
    return controller_values(job_id, jobs.generation(job_id), jobs.counts(job_id))


def identity(folder: Path | None) -> Identity | None:
    """Return the identity in the folder given, if one is. Raises TlsError."""
    return None if folder is None else Identity.read(folder)


def within(option: str, value: float, least: float, most: float) -> None:
    """Raise typer.BadParameter, which names `option`, unless least <= value <= most."""
    if not least <= value <= most:
        raise typer.BadParameter(
            f"{option}: {_plain(value)} is out of range; use {_plain(least)} to {_plain(most)}"
        )


def _plain(value: float) -> str:
    """Return the number as one would type it: without exponent or trailing `.0`."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def require_device_id(device_id: int) -> None:
    """Raise typer.BadParameter unless the number fits P4Runtime's 64 bits."""
    within("--device-id", device_id, 0, 2**64 - 1)


def address(text: str, what: str) -> tuple[str, int]:
    """Return `host:port` as a pair. Raises typer.BadParameter naming `what`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(f"{text}: give {what} as host:port, for example 127.0.0.1:9559")
    return host, int(port)

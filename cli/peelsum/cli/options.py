"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.logs import LogsError, configure, log_event
from peelsum.metrics import PARTS, MetricsError, MetricsServer, Values, controller_values, metrics_address
from peelsum.options import Option, Settings
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

Tls = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Use TLS, with the identity there: see `peelsum certificates make`."),
]


@dataclass(frozen=True)
class Service(Settings):
    """What all commands take that run until a signal comes."""

    tls: Annotated[
        Path | None,
        Option("Use TLS, with the identity there: see `peelsum certificates make`.", metavar="FOLDER"),
    ] = None
    metrics: Annotated[
        str | None,
        Option("Serve Prometheus metrics there; port 0 chooses a free one.", metavar="HOST:PORT"),
    ] = None
    log_format: Annotated[
        str | None,
        Option("Log events to stderr in this form, with job and generation.", metavar="json|console"),
    ] = None
    json: Annotated[bool, Option("Print JSON instead of text.", name="--json")] = False
    child: Annotated[bool, Option("End when standard input closes.", name="--child", hidden=True)] = False

    @property
    def identity(self) -> Identity | None:
        """The identity in the folder `tls`. Raises TlsError."""
        return identity(self.tls)

    def announce(self, text: str, /, **values: object) -> None:
        """Print a line, or its values as JSON."""
        if self.json:
            say(**values)
        else:
            print(text, flush=True)

    def serve_metrics(self, stack: ExitStack, part: str, read: Callable[[], Values]) -> dict[str, str]:
        """Serve a part's metrics, if asked, until the stack is closed; print the address.

        Return what `--json` says of it. Raises MetricsError or TlsError.
        """
        if self.metrics is None:
            return {}
        where = metrics_address(self.metrics)
        server = stack.enter_context(MetricsServer(where, PARTS[part], read, self.identity))
        if not self.json:
            print(f"metrics at {server.url}", flush=True)
        return {"metrics": server.url}

    def logged(
        self, part: str, otherwise: Callable[[object], None], **known: object
    ) -> Callable[[object], None]:
        """Return what to do with a part's events: log them if a format is given. Raises LogsError."""
        if self.log_format is None:
            return otherwise
        configure(self.log_format, part, known)
        return log_event

    def event_teller(self, **known: object) -> Callable[[Event], None]:
        """Return what logs or prints the events of a controller of one job. Raises LogsError."""
        log = self.logged("controller", lambda event: self.announce(str(event), event=str(event)), **known)

        def tell(event: Event) -> None:
            if event.kind not in ("admitted", "evicted"):  # which the command's own output says
                log(event)

        return tell


def reporting(*more: type[Exception]) -> AbstractContextManager[None]:
    """Report errors of the control plane, of these options, and `more` in one line, with exit status 2."""
    from peelsum.control import ControlError
    from peelsum.pipelines import PipelineError

    return reported(ControlError, PipelineError, *OPTION_ERRORS, *more)


def job_values(jobs: JobController, job_id: int) -> Values:
    """Return the values of the metrics of a controller of one job."""
    return controller_values(job_id, jobs.generation(job_id), jobs.counts(job_id))


def identity(folder: Path | None) -> Identity | None:
    """Return the identity in the folder given, if one is. Raises TlsError."""
    return None if folder is None else Identity.read(folder)


def address(text: str, what: str) -> tuple[str, int]:
    """Return `host:port` as a pair. Raises typer.BadParameter naming `what`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(f"{text}: give {what} as host:port, for example 127.0.0.1:9559")
    return host, int(port)

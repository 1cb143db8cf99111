"""Commands whose options are the fields of settings classes, and the options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from peelsum.addresses import parse_address
from peelsum.logs import LogsError, configure, log_event
from peelsum.metrics import PARTS, MetricsError, MetricsServer, Values, controller_values, metrics_address
from peelsum.options import CommandSettings, Option, OptionError, options_of, take_settings
from peelsum.processes import print_message
from peelsum.processes.user_errors import exit_on_errors
from peelsum.tls import TlsError, TlsIdentity
from peelsum.tls import read_token as read_token_file

if TYPE_CHECKING:
    from peelsum.control.cluster import Event, JobController

#: Seconds between two checks of a job's switches.
CHECK_INTERVAL_S = 1.0
#: Errors in the values of the options below.
OPTION_ERRORS = (TlsError, MetricsError, LogsError)

_TLS = "Use TLS with the identity in this folder, which `peelsum certificates make` made."
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Tls = Annotated[Path | None, typer.Option(metavar="FOLDER", help=_TLS)]
Description = Annotated[Path, typer.Argument(help="The job's description, TOML.")]
Topology = Annotated[
    str, typer.Argument(help="star, two_racks, or a .toml or .json file that describes a network.")
]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as Typer takes it: options in place of parameters that are settings classes.

    The returned function takes every option by keyword. An OptionError, of an option's value or of the
    command, becomes typer.BadParameter.
    """
    classes: dict[str, type[CommandSettings]] = {}
    parameters: list[Parameter] = []
    for name, parameter in signature(command, eval_str=True).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, CommandSettings):
            classes[name] = kind
            parameters += _parameters(kind)
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**values: Any) -> None:
        try:
            settings = {name: take_settings(kind, values) for name, kind in classes.items()}
            command(**settings, **values)
        except OptionError as error:
            raise typer.BadParameter(str(error)) from None

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(settings: type[CommandSettings]) -> list[Parameter]:
    """Return a parameter with Typer's annotation for each option of a settings class."""
    hints, options, parameters = get_type_hints(settings), options_of(settings), list[Parameter]()
    for field in fields(settings):
        if field.name not in options:
            continue
        _, option = options[field.name]
        hint, default = hints[field.name], Parameter.empty if field.default is MISSING else field.default
        if option.parse is not None:
            hint, default = (list[str] | None, None) if option.repeated else (str, option.shown(default))
        typer_option = typer.Option(
            *filter(None, (option.name, option.short)),
            help=option.help, metavar=option.metavar, envvar=option.envvar, hidden=option.hidden,
        )  # fmt: skip
        annotation: Any = Annotated[hint, typer_option]
        parameters.append(
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return parameters


@dataclass(frozen=True)
class Service(CommandSettings):
    """Options of all commands that run until a signal arrives."""

    tls: Annotated[Path | None, Option(_TLS, metavar="FOLDER")] = None
    metrics: Annotated[
        str | None,
        Option("Serve Prometheus metrics at this address; port 0 chooses a free port.", metavar="HOST:PORT"),
    ] = None
    log_format: Annotated[
        str | None,
        Option("Log events to stderr in this format, with job and generation.", metavar="json|console"),
    ] = None
    json: Annotated[bool, Option("Print JSON instead of text.", name="--json")] = False
    child: Annotated[bool, Option("End when standard input closes.", name="--child", hidden=True)] = False

    @property
    def identity(self) -> TlsIdentity | None:
        """The identity in the folder `tls`. Raises TlsError."""
        return read_identity(self.tls)

    def announce(self, text: str, /, **values: object) -> None:
        """Print the text, or with `--json` the values."""
        if self.json:
            print_message(**values)
        else:
            print(text, flush=True)

    def serve_metrics(self, stack: ExitStack, part: str, read: Callable[[], Values]) -> dict[str, str]:
        """With `--metrics`, serve a part's metrics until the stack is closed, and print their URL.

        Return the URL as `{"metrics": url}` for the command's JSON, or {}. Raises MetricsError or TlsError.
        """
        if self.metrics is None:
            return {}
        listen_address = metrics_address(self.metrics)
        server = stack.enter_context(MetricsServer(listen_address, PARTS[part], read, self.identity))
        if not self.json:
            print(f"metrics at {server.url}", flush=True)
        return {"metrics": server.url}

    def event_logger(
        self, part: str, otherwise: Callable[[object], None], **context: object
    ) -> Callable[[object], None]:
        """Return the function that logs a part's events: structured with `--log-format`, or `otherwise`.

        context: fields of every log entry. Raises LogsError.
        """
        if self.log_format is None:
            return otherwise
        configure(self.log_format, part, context)
        return log_event

    def job_event_logger(self, **context: object) -> Callable[[Event], None]:
        """Return the function that logs or prints a job controller's events. Raises LogsError."""
        log = self.event_logger(
            "controller", lambda event: self.announce(str(event), event=str(event)), **context
        )

        def log_unless_printed(event: Event) -> None:
            if event.kind not in ("admitted", "evicted"):  # the command's own output reports these
                log(event)

        return log_unless_printed


def address(what: str) -> Callable[[str], str]:
    """Return the parser of an option that is an address: it returns the text, or raises ValueError."""

    def parse(text: str) -> str:
        try:
            parse_address(text, what)
        except ValueError as error:
            raise ValueError(f"{text}: {error}") from None
        return text

    return parse


def addresses(what: str) -> Callable[[Sequence[str]], tuple[str, ...]]:
    """Return the parser of a repeated option, each of whose values is an address."""
    parse = address(what)
    return lambda texts: tuple(map(parse, texts))


@dataclass(frozen=True)
class ClusterSettings(CommandSettings):
    """The controllers of a cluster: its primary and its backups."""

    controller: Annotated[
        tuple[str, ...],
        Option(
            "Ask the cluster's controller at this address; repeat the option for a backup.",
            metavar="HOST:PORT", parse=addresses("the controller"), repeated=True,
        ),
    ] = ()  # fmt: skip


@dataclass(frozen=True)
class JobRequestSettings(ClusterSettings):
    """A request to a cluster's controller that changes a job."""

    token: Annotated[
        Path | None, Option("File with the job's token. Without the token, nobody can change the job later.")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token is not None and not self.controller:
            raise OptionError(f"--token: {self.token}: applies to --controller only; give that too")


def report_errors(*more: type[Exception]) -> AbstractContextManager[None]:
    """Report errors of the control plane, of shared options, and `more` in one line, with exit status 2."""
    from peelsum.control import ControlError
    from peelsum.pipelines import PipelineError

    return exit_on_errors(ControlError, PipelineError, *OPTION_ERRORS, *more)


def job_metrics(jobs: JobController, job_id: int) -> Values:
    """Return the metrics of a controller of one job."""
    return controller_values(job_id, jobs.generation(job_id), jobs.counts(job_id))


def read_token(path: Path | None) -> str:
    """Return the token in a file; an empty text for None. Raises TlsError."""
    return "" if path is None else read_token_file(path)


def read_identity(folder: Path | None) -> TlsIdentity | None:
    """Return the identity in `folder`; None for None. Raises TlsError."""
    return None if folder is None else TlsIdentity.read(folder)

"""`peelsum server`: the aggregation server of a job."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from peelsum.addresses import parse_address
from peelsum.cli.options import OPTION_ERRORS, Service, address, with_settings
from peelsum.options import CommandSettings, Option, OptionError
from peelsum.processes import print_message, terminate_with_parent
from peelsum.processes.children import ADMISSION
from peelsum.processes.progress import compile_progress_reporter
from peelsum.processes.user_errors import ending_signals, exit_on_errors
from peelsum.reading import parse_json, read_text

app = typer.Typer(help="The aggregation server of a job.", no_args_is_help=True)


@dataclass(frozen=True)
class _ServerSettings(CommandSettings):
    """The job, and the switch port of its server."""

    switch: Annotated[
        str,
        Option("The switch port to connect to, host:port (UDP).", parse=address("the switch port")),
    ]
    admission: Annotated[
        str, Option("Output of `peelsum job admit --json`, or a file of it.", envvar=ADMISSION)
    ]
    ethernet: Annotated[
        bool, Option("The switch is on this host's network, not a UDP socket that answers hellos.")
    ] = False
    local_port: Annotated[int, Option("This host's UDP port, if it is free.", 0, 0xFFFF, hidden=True)] = 0
    seats: Annotated[Path | None, Option("A file to remove when all workers have finished.", hidden=True)] = (
        None
    )


@app.command()
@with_settings
def run(settings: _ServerSettings, service: Service) -> None:
    """Serve a job until Ctrl-C, or until all its workers have finished."""
    from peelsum.metrics import Values, server_values
    from peelsum.transport import AggregationService, Event, JobFinished, TransportError, job_config

    def continue_job(message: dict[str, Any]) -> None:
        """Serve the workers of another admission, which the parent sends when a worker was lost."""
        admitted = job_config(message["admission"])
        server.continue_in(admitted, lambda: print_message(generation=admitted.generation))

    if service.child:
        terminate_with_parent(continue_job)
    compile_progress_reporter(child=service.child)

    def on_event(event: Event) -> None:
        # Removed before workers learn that they have finished, so that none of them ends earlier.
        if settings.seats is not None and isinstance(event, JobFinished):
            settings.seats.unlink(missing_ok=True)
        log(event)

    def print_event(event: object) -> None:
        if not service.json:
            print(event, file=sys.stderr, flush=True)

    with exit_on_errors(TransportError, *OPTION_ERRORS), ExitStack() as stack:
        config = job_config(_read_admission(settings.admission))
        log = service.event_logger("server", print_event, job=config.job_id, generation=config.generation)
        server = stack.enter_context(
            AggregationService(
                config,
                parse_address(settings.switch),
                wire="ethernet" if settings.ethernet else "udp-port",
                local_port=settings.local_port,
            )
        )

        def read_metrics() -> Values:
            return server_values({config.job_id: asdict(server.stats())})

        url = service.serve_metrics(stack, "server", read_metrics)
        signals: list[int] = []

        def stop(number: int, _: object) -> None:
            signals.append(number)
            server.stop()

        for number in ending_signals():
            signal.signal(number, stop)
        line = f"job {config.job_id}: serving at {settings.switch}"
        service.announce(line, job_id=config.job_id, switch=settings.switch, **url)
        statistics = asdict(server.run(on_event))
    service.announce("\n".join(f"{name} = {value}" for name, value in statistics.items()), **statistics)
    if service.child and signals and not server.finished:
        # A parent takes the status 0 for a finished job, and would not start the job's server again.
        signal.signal(signals[0], signal.SIG_DFL)
        signal.raise_signal(signals[0])


def _read_admission(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`, or in the file that it names. Raises OptionError."""
    try:
        if not text.lstrip().startswith("{"):
            text = read_text(Path(text))
        values = parse_json(text)
    except OSError as error:
        raise OptionError(f"admission: {text}: {error.strerror}; give JSON or the path of a file") from None
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise OptionError("admission: is not a JSON object; give what `peelsum job admit --json` printed")
    return values

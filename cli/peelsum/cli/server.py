"""`peelsum server`: the aggregation server of a job."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from peelsum.cli.options import (
    OPTION_ERRORS,
    ChildOf,
    Json,
    LogFormat,
    Metrics,
    Tls,
    address,
    logged,
    serve_metrics,
)
from peelsum.processes import end_with_parent, say
from peelsum.processes.children import ADMISSION
from peelsum.processes.reports import told_of_compiling
from peelsum.processes.user_errors import reported
from peelsum.reading import parse_json, read_text

app = typer.Typer(help="The aggregation server.", no_args_is_help=True)


@app.command()
def run(
    switch: Annotated[str, typer.Option(help="The switch port to connect to, host:port (UDP).")],
    admission: Annotated[
        str,
        typer.Option(envvar=ADMISSION, help="Output of `peelsum job admit --json`, or a file of it."),
    ],
    ethernet: Annotated[
        bool, typer.Option(help="The switch is on this host's network, not a UDP socket that answers hellos.")
    ] = False,
    seats: Annotated[
        Path | None, typer.Option(hidden=True, help="A file to remove when all workers have finished.")
    ] = None,
    metrics: Metrics = None,
    tls: Tls = None,
    log_format: LogFormat = None,
    json: Json = False,
    child: ChildOf = False,
) -> None:
    """Serve a job until Ctrl-C, or until all its workers have finished."""
    from peelsum.metrics import Values, server_values
    from peelsum.transport import AggregationService, Event, JobFinished, TransportError, job_config

    if child:
        end_with_parent()
    told_of_compiling(child=child)
    host_and_port = address(switch, "the switch port")

    def report(event: Event) -> None:
        # Removed before workers learn that they have finished, so that none of them ends earlier.
        if seats is not None and isinstance(event, JobFinished):
            seats.unlink(missing_ok=True)
        tell(event)

    def print_event(event: object) -> None:
        if not json:
            print(event, file=sys.stderr, flush=True)

    with reported(TransportError, *OPTION_ERRORS), ExitStack() as stack:
        config = job_config(_admission(admission))
        known = {"job": config.job_id, "generation": config.generation}
        tell = logged(log_format, "server", print_event, **known)
        service = stack.enter_context(
            AggregationService(config, host_and_port, wire="ethernet" if ethernet else "udp-port")
        )

        def read() -> Values:
            return server_values({config.job_id: asdict(service.stats())})

        url = serve_metrics(stack, metrics, "server", read, tls, json)
        stopped_by = []

        def stop(number: int, _: object) -> None:
            stopped_by.append(number)
            service.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        if json:
            say(job_id=config.job_id, switch=switch, **url)
        else:
            print(f"job {config.job_id}: serving at {switch}", flush=True)
        stats = service.run(report)
    values = asdict(stats)
    if json:
        say(**values)
    else:
        print("\n".join(f"{name} = {value}" for name, value in values.items()))
    if child and stopped_by and not service.finished:
        # By the status 0, a parent would take the job for finished, and not start its server again.
        signal.signal(stopped_by[0], signal.SIG_DFL)
        signal.raise_signal(stopped_by[0])


def _admission(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`, or in the file that it names."""
    try:
        if not text.lstrip().startswith("{"):
            text = read_text(Path(text))
        values = parse_json(text)
    except OSError as error:
        raise typer.BadParameter(
            f"admission: {text}: {error.strerror}; give JSON or the path of a file"
        ) from None
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise typer.BadParameter(
            "admission: is not a JSON object; give what `peelsum job admit --json` printed"
        )
    return values

"""`peelsum server`: the aggregation server of a job."""

from __future__ import annotations

import json as json_
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from peelsum.cli.options import ChildOf, Json, address
from peelsum.topology import end_with_parent, say
from peelsum.topology.telling import told_of_compiling
from peelsum.topology.user_errors import reported

app = typer.Typer(help="The aggregation server.", no_args_is_help=True)


class AdmissionError(ValueError):
    """What was given as a job's admission is none."""


@app.command()
def run(
    switch: Annotated[str, typer.Option(help="The switch port to plug into, host:port (UDP).")],
    admission: Annotated[str, typer.Option(help="What `peelsum job admit --json` printed, or a file of it.")],
    ethernet: Annotated[
        bool, typer.Option(help="The switch is on this host's wire, not a UDP socket that answers hellos.")
    ] = False,
    seats: Annotated[
        Path | None, typer.Option(hidden=True, help="A file to remove once all workers have finished.")
    ] = None,
    json: Json = False,
    child: ChildOf = False,
) -> None:
    """Serve a job until Ctrl-C, or until all its workers have finished."""
    from peelsum.transport import AggregationService, Event, JobFinished, TransportError, job_config

    if child:
        end_with_parent()
    told_of_compiling(json=json, child=child)
    host_and_port = address(switch, "the switch port")

    def report(event: Event) -> None:
        # Before the workers know that they have finished, so that none of them ends earlier.
        if seats is not None and isinstance(event, JobFinished):
            seats.unlink(missing_ok=True)
        if not json:
            print(event, file=sys.stderr, flush=True)

    with reported(TransportError, AdmissionError):
        config = job_config(_admission(admission))
        with AggregationService(
            [config], host_and_port, wire="ethernet" if ethernet else "udp-port"
        ) as service:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: service.stop())
            if json:
                say(job_id=config.job_id, switch=switch)
            else:
                print(f"job {config.job_id}: serving at {switch}", flush=True)
            (stats,) = service.run(report).values()
    values = asdict(stats)
    if json:
        say(**values)
    else:
        print("\n".join(f"{name} = {value}" for name, value in values.items()))


def _admission(text: str) -> dict[str, Any]:
    """The object in `text`, or in the file that it names."""
    try:
        if not text.lstrip().startswith("{"):
            text = Path(text).read_text(encoding="utf-8")
        values = json_.loads(text)
    except OSError as error:
        raise AdmissionError(
            f"admission: {text}: {error.strerror}; give JSON or the path of a file"
        ) from None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise AdmissionError("admission: is no JSON object; give what `peelsum job admit --json` printed")
    return values

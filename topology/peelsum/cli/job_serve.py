"""`peelsum job serve`: a job that is admitted anew whenever its workers start, over one switch, by UDP.

Whoever connects is answered with one JSON object, `admission` and `switch`, the addresses of the workers'
ports in order, once the job is admitted in a new generation and its server runs. It asks nothing of them.
"""

from __future__ import annotations

import json as json_
import socket
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.cli.errors import reported
from peelsum.cli.options import ChildOf, Json, address
from peelsum.topology import Child, ProcessError, Signalled, end_with_parent, say

if TYPE_CHECKING:
    from peelsum.control import Fabric, JobDescription, Watch
    from peelsum.target.artifacts import Pipeline

_LOOK_EVERY_S = 1.0
#: How long one who asks may take to hear the answer, in seconds.
_ANSWER_S = 5.0


class ServeError(Exception):
    """What was asked for cannot be served."""


def serve(
    description: Annotated[Path, typer.Argument(help="The job's description, TOML; of one switch.")],
    udp: Annotated[str, typer.Option(help="host:port of the switch as its port 0 would be: --udp-base.")],
    listen: Annotated[str, typer.Option(help="Where workers ask, host:port (TCP).")] = "127.0.0.1:9560",
    json: Json = False,
    child: ChildOf = False,
) -> None:
    """Admit a job anew, with a new aggregation server, for all workers that start; until Ctrl-C."""
    from peelsum.control import ControlError, Fabric, JobDescription, read_description
    from peelsum.target import TargetError
    from peelsum.target.artifacts import pipeline

    if child:
        end_with_parent()
    base, place = address(udp, "the switch"), address(listen, "the address to listen at")
    with reported(ControlError, TargetError, ServeError, ProcessError), ExitStack() as stack:
        job = read_description(description)
        if not isinstance(job, JobDescription):
            raise ServeError("racks: are not served; admit the job with `peelsum job admit`")
        compiled = pipeline(job.plans()[0].switch.pipeline_lanes)
        fabric = stack.enter_context(Fabric.connect(job))
        fabric.load_pipeline(compiled.json_path, compiled.p4info_path)
        fabric.stand_back()  # others may admit jobs beside this one
        listening = stack.enter_context(_listening(place))
        host, port = listening.getsockname()[:2]
        if json:
            say(host=host, port=port)
        else:
            print(f"job {job.job.id}: asked for at {host}:{port}", flush=True)
        stack.callback(fabric.evict)
        _answer(listening, stack.enter_context(_Runs(fabric, job, compiled, base)))


class _Runs:
    """One run of the job after the other: its admission, held on the switch, and its server."""

    def __init__(
        self, fabric: Fabric, job: JobDescription, compiled: Pipeline, base: tuple[str, int]
    ) -> None:
        self._fabric, self._job, self._compiled, self._base = fabric, job, compiled, base
        self._server = ExitStack()
        self._watch: Watch | None = None

    def __enter__(self) -> _Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def start(self) -> dict[str, Any]:
        """End the run before, start another; what its workers must know."""
        from peelsum.control import Watch

        self._server.close()
        admitted = self._fabric.admit()
        self._watch = Watch(
            self._fabric, admitted.generation, self._compiled.json_path, self._compiled.p4info_path
        )
        admission = {**asdict(admitted), "timeout_s": self._job.job.timeout_s}
        at, said = self._at(self._job.server_port), json_.dumps(admission)
        server = Child.peelsum(
            "server", "server", "run", "--switch", at, "--admission", said, "--json", "--child"
        )
        self._server.callback(server.stop)
        server.ready()
        return {"admission": admission, "switch": [self._at(port) for port in self._job.worker_ports]}

    def look(self) -> list[str]:
        """Give a switch that was restarted its tables back; what had to be done."""
        return [str(event) for event in self._watch.look()] if self._watch is not None else []

    def _at(self, port: int) -> str:
        return f"{self._base[0]}:{self._base[1] + port}"


def _listening(place: tuple[str, int]) -> socket.socket:
    try:
        return socket.create_server(place)
    except OSError as error:
        raise ServeError(f"--listen: {place[0]}:{place[1]}: {error.strerror}; choose another") from error


def _answer(listening: socket.socket, runs: _Runs) -> None:
    """Start a run for each one who asks, until told to end."""
    from peelsum.control import ControlError

    ended = Signalled(SIGINT, SIGTERM)
    listening.settimeout(_LOOK_EVERY_S)
    while not ended.wait(0):
        try:
            link, _ = listening.accept()
        except TimeoutError:
            for event in runs.look():
                print(event, file=sys.stderr, flush=True)
            continue
        with link:
            try:
                answer = runs.start()
            except (ControlError, ProcessError) as error:
                answer = {"error": str(error)}
            try:
                link.settimeout(_ANSWER_S)
                link.sendall(json_.dumps(answer).encode())
            except OSError:  # the one who asked has gone, and will ask again
                continue

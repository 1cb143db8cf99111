"""A star on one machine, over loopback: a switch, its controller, an aggregation server, seats for workers.

A star of several planes has a switch, a controller and a server in each. They are processes; the caller runs
the workers. It needs no privileges and uses only free ports.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from peelsum.processes.children import ADMISSION, Child
from peelsum.processes.errors import ProcessError


@dataclass(frozen=True)
class Seat:
    """A worker's place in a network: everything that it needs to connect."""

    worker_id: int
    """The worker's number in the job."""

    switch_host: str
    """The host of the worker's switch port."""

    switch_port: int
    """The UDP port of the worker's switch port."""

    admission: Mapping[str, Any]
    """The job's admission, as `peelsum job admit --json` prints it."""

    more_planes: Sequence[Mapping[str, Any]] = ()
    """`switch_host`, `switch_port` and `admission` in each further plane."""


@dataclass(frozen=True)
class StarReport:
    """The counters of one plane's parts, after the star is closed."""

    verdicts: Mapping[str, int]
    """Packets by the switch program's verdict."""

    server: Mapping[str, Any]
    """The aggregation server's statistics."""

    ports: Mapping[str, Any]
    """The switch's counters by port."""

    queues: Mapping[str, Any] = field(default_factory=dict)
    """The counters of ports with a rate."""


class Star:
    """A star, started on entry and ended on exit, after which it has a `report`, and `reports` by plane.

    planes: how many switches, each with a controller and a server of its own, every worker is connected to.
    rate_mbit: the rate at which every port of the switch sends; None is as fast as it can. delay_ms: the
    milliseconds that a frame is under way on each link, in each direction; a chunk and its result pass four.
    schedule: a file of changes of what the switch's ports send, see `peelsum.softswitch.ports.schedule`.
    mark_from: how many packets may wait at a port with a rate before later ones get an ECN mark.
    """

    def __init__(
        self,
        workers: int,
        *,
        planes: int = 1,
        lanes: int = 256,
        window: int = 1024,
        loss: float = 0.0,
        seed: int = 0,
        rate_mbit: float | None = None,
        delay_ms: float = 0.0,
        schedule: Path | None = None,
        mark_from: int = 64,
        job_id: int = 1,
        timeout_s: float = 30.0,
    ) -> None:
        self._workers, self._lanes, self._window, self._job_id = workers, lanes, window, job_id
        self._planes = planes
        self._loss, self._seed, self._timeout_s = loss, seed, timeout_s
        self._rate_mbit, self._mark_from = rate_mbit, mark_from
        self._delay_ms, self._schedule = delay_ms, schedule
        self._children: dict[str, Child] = {}
        self.seats: list[Seat] = []
        self.reports: list[StarReport] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process_ids(self) -> list[int]:
        """The ids of the switches' and the servers' processes."""
        return [self._children[name].pid for name in self._names("switch") + self._names("server")]

    @property
    def report(self) -> StarReport | None:
        """The report of the first plane; None until the star is closed."""
        return self.reports[0] if self.reports else None

    def check(self) -> None:
        """Raise ProcessError if a part of the star has ended by itself."""
        servers = self._names("server")
        for name, child in self._children.items():
            # A server of a finished job ends by itself, too, with status 0.
            if child.status or (child.status == 0 and name not in servers):
                raise ProcessError(child.exit_report())

    def close(self) -> None:
        """End every process, the ones that use others first."""
        ended = {name: self._children[name].stop() for name in reversed(list(self._children))}
        self._children.clear()
        parts = zip(*(self._names(part) for part in ("controller", "server", "switch")), strict=True)
        self.reports = self.reports or [
            StarReport(
                verdicts=ended.get(controller, {}).get("verdicts", {}),
                server=ended.get(server, {}),
                ports=ended.get(switch, {}).get("ports", {}),
                queues=ended.get(switch, {}).get("queues", {}),
            )
            for controller, server, switch in parts
        ]

    def _start(self) -> None:
        places: list[list[dict[str, Any]]] = []
        for plane in range(self._planes):
            listening = self._switch(plane)
            udp_ports = {int(port): udp for port, udp in listening["udp_ports"].items()}
            admission = self._controller(plane, listening)
            self._server(plane, listening, udp_ports[self._workers + 1], admission)
            host = listening["host"]
            places.append(
                [
                    {"switch_host": host, "switch_port": udp_ports[worker + 1], "admission": admission}
                    for worker in range(self._workers)
                ]
            )
        self.seats = [
            Seat(worker, **first, more_planes=more)
            for worker, (first, *more) in enumerate(zip(*places, strict=True))
        ]

    def _names(self, part: str) -> list[str]:
        """Return this part's name in each plane."""
        return [part] if self._planes == 1 else [f"{part} of plane {i}" for i in range(self._planes)]

    def _child(self, part: str, plane: int, *arguments: str, **environment: str) -> dict[str, Any]:
        name = self._names(part)[plane]
        child = Child.peelsum(name, *arguments, "--json", "--child", environment=environment)
        self._children[name] = child
        return child.ready()

    def _switch(self, plane: int) -> dict[str, Any]:
        options = ["--loss", str(self._loss), "--seed", str(self._seed + plane)]
        if self._rate_mbit is not None:
            options += ["--port-rate", str(self._rate_mbit)]
        if self._delay_ms:
            options += ["--port-delay", str(self._delay_ms), "--arrival-delay", str(self._delay_ms)]
        if self._schedule is not None:
            options += ["--schedule", str(self._schedule)]
        ports = str(self._workers + 1)
        return self._child(
            "switch", plane, "switch", "run", "--ports", ports, "--p4runtime", "127.0.0.1:0", *options
        )

    def _controller(self, plane: int, listening: Mapping[str, Any]) -> dict[str, Any]:
        text = (
            f"[job]\nid = {self._job_id}\nworkers = {self._workers}\nwindow = {self._window}\n"
            f"timeout_s = {float(self._timeout_s)}\n"
            f'[switch]\np4runtime = "{listening["host"]}:{listening["grpc_port"]}"\n'
            f"pipeline_lanes = {self._lanes}\nqueue_depth = {self._mark_from}\n"
            f"[ports]\nworkers = {list(range(1, self._workers + 1))}\nserver = {self._workers + 1}\n"
        )
        with tempfile.NamedTemporaryFile("w", prefix="peelsum-", suffix=".toml") as description:
            description.write(text)
            description.flush()
            return self._child("controller", plane, "job", "admit", description.name, "--hold")

    def _server(
        self, plane: int, listening: Mapping[str, Any], udp_port: int, admission: Mapping[str, Any]
    ) -> None:
        switch = f"{listening['host']}:{udp_port}"
        environment = {ADMISSION: json.dumps(admission)}
        self._child("server", plane, "server", "run", "--switch", switch, **environment)

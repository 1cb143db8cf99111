"""A star network over loopback: a switch, a controller and an aggregation server, each a process.

The caller runs the workers. The star needs no privileges, and binds free ports only. With several planes,
there are a switch, a controller and a server in each plane, and workers are connected to all planes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from peelsum.processes.children import ADMISSION, Child
from peelsum.processes.user_errors import ProcessError


@dataclass(frozen=True)
class Seat:
    """What a worker needs to connect to its switch ports."""

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
    """The counters of one plane, after the star is closed."""

    verdicts: Mapping[str, int]
    """The number of packets with each verdict of the switch program."""
    server: Mapping[str, Any]
    """The aggregation server's statistics."""
    ports: Mapping[str, Any]
    """The counters of the switch's ports."""
    queues: Mapping[str, Any] = field(default_factory=dict)
    """The counters of the queues of ports with a rate."""


class Star:
    """A star network, as a context manager. At its end, it has a `report`, and `reports` of all planes.

    planes: the number of planes. lanes, window, job_id, timeout_s: of the job.
    loss: the share of packets that the switches lose. loss_burst: the mean number of packets that are lost in
    a row; None loses each independently. late: the share of packets that change places with later ones.
    seed: of all three.
    rate_mbit: the rate of every switch port in Mbit/s, or rates by port; None for no limit.
    mark_from: the number of packets in the queue of a port with a rate from which packets get an ECN mark.
    delay_ms: the delay of each link in each direction; the way of a chunk and its result has four links.
    schedule: a file with changes of rates and delays, see `peelsum.softswitch.ports.schedule`.
    """

    def __init__(
        self,
        workers: int,
        *,
        planes: int = 1,
        lanes: int = 256,
        window: int = 1024,
        loss: float = 0.0,
        loss_burst: float | None = None,
        late: float = 0.0,
        seed: int = 0,
        rate_mbit: float | Mapping[int, float] | None = None,
        delay_ms: float = 0.0,
        schedule: Path | None = None,
        mark_from: int = 64,
        job_id: int = 1,
        timeout_s: float = 30.0,
    ) -> None:
        self._workers, self._planes, self._seed = workers, planes, seed
        self._job = (
            f"[job]\nid = {job_id}\nworkers = {workers}\nwindow = {window}\ntimeout_s = {float(timeout_s)}\n"
            f"[ports]\nworkers = {list(range(1, workers + 1))}\nserver = {workers + 1}\n"
            f"[switch]\npipeline_lanes = {lanes}\nqueue_depth = {mark_from}\n"
        )
        self._switch_options = ["--ports", str(workers + 1), "--loss", str(loss), "--late", str(late)]
        if loss_burst is not None:
            self._switch_options += ["--loss-burst", str(loss_burst)]
        if isinstance(rate_mbit, Mapping):
            for port, mbit in rate_mbit.items():
                self._switch_options += ["--port-rate", f"{port}@{mbit}"]
        elif rate_mbit is not None:
            self._switch_options += ["--port-rate", str(rate_mbit)]
        if delay_ms:
            self._switch_options += ["--port-delay", str(delay_ms), "--arrival-delay", str(delay_ms)]
        if schedule is not None:
            self._switch_options += ["--schedule", str(schedule)]
        self._children: dict[str, Child] = {}
        self.seats: list[Seat] = []
        self.reports: list[StarReport] = []

    def __enter__(self) -> Self:
        try:
            planes = [self._start_plane(plane) for plane in range(self._planes)]
        except BaseException:
            self.close()
            raise
        self.seats = [
            Seat(worker, **first, more_planes=more)
            for worker, (first, *more) in enumerate(zip(*planes, strict=True))
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the switches, and then of the servers."""
        return [self._children[name].pid for name in self._names("switch") + self._names("server")]

    @property
    def report(self) -> StarReport | None:
        """The report of the first plane; None until the star is closed."""
        return self.reports[0] if self.reports else None

    def check(self) -> None:
        """Raise ProcessError if a process of the star has ended by itself."""
        servers = self._names("server")
        for name, child in self._children.items():
            # When a job has finished, its server ends by itself with status 0.
            if child.status or (child.status == 0 and name not in servers):
                raise ProcessError(child.exit_report())

    def close(self) -> None:
        """Stop all processes, in the reverse order of their start, and set `reports`."""
        last_messages = {name: self._children[name].stop() for name in reversed(list(self._children))}
        self._children.clear()
        for parts in zip(*map(self._names, ("controller", "server", "switch")), strict=True):
            controller, server, switch = (last_messages.get(name, {}) for name in parts)
            if len(self.reports) < self._planes:
                verdicts, ports = controller.get("verdicts", {}), switch.get("ports", {})
                self.reports.append(StarReport(verdicts, server, ports, switch.get("queues", {})))

    def _names(self, part: str) -> list[str]:
        """Return the names of a kind of process in all planes."""
        return [part] if self._planes == 1 else [f"{part} of plane {i}" for i in range(self._planes)]

    def _start_plane(self, plane: int) -> list[dict[str, Any]]:
        """Start the processes of a plane; return `switch_host`, `switch_port` and `admission` by worker."""
        seed = str(self._seed + plane)
        options = [*self._switch_options, "--seed", seed, "--p4runtime", "127.0.0.1:0"]
        switch = self._start(plane, "switch", "switch", "run", *options)
        host, udp_ports = switch["host"], {int(port): udp for port, udp in switch["udp_ports"].items()}
        with tempfile.NamedTemporaryFile("w", prefix="peelsum-", suffix=".toml") as description:
            description.write(f'{self._job}p4runtime = "{host}:{switch["grpc_port"]}"\n')
            description.flush()
            admission = self._start(plane, "controller", "job", "admit", description.name, "--hold")
        server = f"{host}:{udp_ports[self._workers + 1]}"
        environment = {ADMISSION: json.dumps(admission)}
        self._start(plane, "server", "server", "run", "--switch", server, **environment)
        return [
            {"switch_host": host, "switch_port": udp_ports[worker + 1], "admission": admission}
            for worker in range(self._workers)
        ]

    def _start(self, plane: int, part: str, *arguments: str, **environment: str) -> dict[str, Any]:
        """Start a process of a plane; return its first message."""
        name = self._names(part)[plane]
        self._children[name], message = Child.start_ready(name, *arguments, environment=environment)
        return message

"""Runs of a served job: each is an admission and an aggregation server, until the next start or the end.

Further groups of workers get jobs of their own, at spare ports of the switch, each until its lease ends.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from peelsum.control.cluster.jobs import JobController
from peelsum.control.cluster.requests import Guest
from peelsum.control.cluster.switches import Event
from peelsum.control.description import AnyDescription, JobDescription, PortsSection
from peelsum.control.errors import ControlError, HeldError
from peelsum.control.sections import MAX_JOB_ID
from peelsum.processes import Child, ProcessError
from peelsum.processes.children import ADMISSION
from peelsum.processes.restarts import RestartableProcess
from peelsum.wire.datagrams import Address


class Run:
    """A job of a controller, and its current run, if there is one."""

    def __init__(
        self, controller: JobController, job: AnyDescription, bases: Sequence[Address], *, ethernet: bool
    ) -> None:
        """bases: of the switches' UDP ports, or with `ethernet` the addresses that packets are sent to."""
        self.job = job
        self._controller, self._bases, self._ethernet = controller, bases, ethernet
        self._server: RestartableProcess | None = None

    def start(self, *, is_new: bool = False) -> dict[str, Any]:
        """End the previous run and start another; return what its workers must know.

        is_new: as for `JobController.admit_job`. Raises ControlError or ProcessError; then no run is left.
        """
        self.end()
        with ExitStack() as run:
            admission = self._controller.admit_job(self.job, is_new=is_new)
            run.callback(self._evict)
            self._server = RestartableProcess(self._serving(admission), lambda: self._serving(admission))
            run.pop_all()
        wire = {"wire": "ethernet"} if self._ethernet else {}
        return {"admission": admission, "switch": self._seats(), **wire}

    def end(self) -> None:
        """End the run, if there is one: its server, then its admission."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            self._evict()

    def look(self) -> None:
        """Start the run's server again if it has ended; end a run that cannot continue."""
        if self._server is None:
            return
        try:
            # Without its switch, a new server would end at once, and the run with it.
            if self._server.child.status and self._controller.is_up(self.job):
                self._controller.tell(Event("server", self._server.restart(), self.job.job.id))
        except ProcessError as error:
            self._controller.tell(Event("error", str(error), self.job.job.id))
            self.end()
        if self._controller.generation(self.job.job.id) is None:
            self.end()

    def _evict(self) -> None:
        """Evict the job, unless somebody else ended it. A switch that is away is not waited for."""
        job_id = self.job.job.id
        if self._controller.generation(job_id) is not None:
            for switch in self._controller.evict(job_id)["waiting"]:
                text = f"job: {job_id}: is still on {switch}, which is away, or which another controller uses"
                self._controller.tell(Event("error", text, job_id))

    def _serving(self, admission: dict[str, Any]) -> Child:
        address = self._port(self._bases[0], self.job.server_port)
        wire = ["--ethernet"] if self._ethernet else []
        server = Child.peelsum(
            "server",
            *("server", "run", "--switch", address, "--json", "--child", *wire),
            environment={ADMISSION: json.dumps(admission)},
        )
        try:
            server.ready()
        except BaseException:
            server.stop()
            raise
        return server

    def _seats(self) -> list[str]:
        """Return the addresses of workers' ports, in order: at the one switch, or at each rack's."""
        sizes = self.job.rack_sizes or (self.job.job.workers,)
        racks = zip(self._bases[-len(sizes) :], sizes, strict=True)
        bases = [base for base, size in racks for _ in range(size)]
        return [self._port(base, port) for base, port in zip(bases, self.job.worker_ports, strict=True)]

    def _port(self, base: Address, port: int) -> str:
        return f"{base[0]}:{base[1] if self._ethernet else base[1] + port}"


class Runs:
    """The runs of a served job and of its further groups, as a context manager."""

    def __init__(
        self, controller: JobController, job: AnyDescription, bases: Sequence[Address], *, ethernet: bool
    ) -> None:
        """bases, ethernet: as for `Run`."""
        self._controller, self._bases, self._ethernet = controller, bases, ethernet
        self._main = Run(controller, job, bases, ethernet=ethernet)
        self._job = job if isinstance(job, JobDescription) else None
        # Ports that were free for longest are taken first: a former worker's late packets may reach others.
        self._spare = deque(self._job.ports.spare if self._job else ())
        self._groups: dict[Guest, Run] = {}

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_: object) -> None:
        for guest in list(self._groups):
            self._end(guest)
        self._main.end()

    def start(self, guest: Guest) -> dict[str, Any]:
        """Start a run for the holder of a lease; return what its workers must know, or `error`, or `refused`.

        `refused` says why there is no room for a further group.
        """
        try:
            answer = self._main.start() if guest.ranks is None else self._start_group(guest, guest.ranks)
        except (ControlError, ProcessError, OSError) as error:
            self._controller.tell(Event("error", str(error)))
            return {"error": str(error)}
        self._controller.tell(Event("run", _started(answer, guest)))
        return answer

    def look(self) -> None:
        """Look after all runs: end those whose leases have ended, and restore what the others lost."""
        self._controller.poll()
        self._main.look()
        for guest, run in list(self._groups.items()):
            if guest.left:
                self._end(guest)
            else:
                run.look()

    def _start_group(self, guest: Guest, ranks: int) -> dict[str, Any]:
        self.look()
        if self._job is None:
            return {"refused": "a job over racks has no jobs for further groups; use one switch"}
        if self._ethernet:
            return {
                "refused": "an interface has one worker, so further groups need ports that are UDP sockets"
            }
        if not 2 <= ranks <= self._job.job.workers:
            return {"error": f"a group of {ranks} ranks; request one of 2 to {self._job.job.workers}"}
        if len(self._spare) <= ranks:
            return {
                "refused": f"a group of {ranks} ranks needs {ranks + 1} spare ports of the switch, and "
                f"{len(self._spare)} are free; add some to ports.spare of the job's description"
            }
        ports = [self._spare.popleft() for _ in range(ranks + 1)]
        taken = {self._job.job.id, *(run.job.job.id for run in self._groups.values())}
        try:
            for number in (one for one in range(MAX_JOB_ID, 0, -1) if one not in taken):
                run = Run(
                    self._controller, self._group_job(self._job, number, ports), self._bases, ethernet=False
                )
                try:
                    answer = run.start(is_new=True)
                except BaseException as error:
                    self._controller.release(run.job)
                    if isinstance(error, HeldError):
                        continue
                    raise
                self._groups[guest] = run
                return answer
            return {"refused": f"all {MAX_JOB_ID} numbers of jobs are taken at the switch; evict one"}
        finally:
            if guest not in self._groups:
                self._spare.extend(ports)

    def _group_job(self, job: JobDescription, number: int, ports: Sequence[int]) -> JobDescription:
        server, *workers = ports
        return JobDescription(
            job=job.job.model_copy(update={"id": number, "workers": len(workers)}),
            switch=job.switch,
            ports=PortsSection(server=server, workers=tuple(workers)),
            hosts={name: host for name, host in job.hosts.items() if int(name) in ports},
        )

    def _end(self, guest: Guest) -> None:
        run = self._groups.pop(guest)
        run.end()
        self._controller.release(run.job)
        number, ports = run.job.job.id, (run.job.server_port, *run.job.worker_ports)
        self._controller.tell(Event("run", f"group's job {number}: ended with {guest.name}"))
        self._spare.extend(ports)


def _started(answer: dict[str, Any], guest: Guest) -> str:
    """Return the line to be printed about a response."""
    if reason := answer.get("refused") or answer.get("error"):
        return f"refused {guest.name}: {reason}"
    admission = answer["admission"]
    what = "" if guest.ranks is None else f"group's job {admission['job_id']}: "
    return f"{what}generation {admission['generation']}: started for {guest.name}"

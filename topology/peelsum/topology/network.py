"""Runs a described network on this machine: switches, the job's controller and server, places for hosts.

Links are loopback UDP (`UdpNetwork`, without privileges) or virtual Ethernet between network namespaces
(`VethNetwork`, as root).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from peelsum.processes.children import ADMISSION, Child
from peelsum.processes.errors import ProcessError
from peelsum.processes.restarts import RestartableProcess
from peelsum.topology import bmv2, jobs
from peelsum.topology.description import JobNode, Link, Topology, switch_port
from peelsum.topology.errors import TopologyError
from peelsum.topology.namespaces import (
    HOST_INTERFACE,
    add_wire,
    attach_host,
    bridge,
    configure_host,
    enter_own_namespace,
    hold_namespace,
    inside,
    lose,
    shape,
)
from peelsum.topology.records import MARKER, Place, Process, files_of
from peelsum.transport.seats import SEAT
from peelsum.wire import UDP_PORT

SwitchKind = Literal["embedded", "bmv2"]
#: Chunks in flight. BMv2's queues hold 64 packets a port by default, and would drop more.
_WINDOWS = {"embedded": 512, "bmv2": 64}
_LOOPBACK = "127.0.0.1"
_SERVER, _CONTROLLER = "server", "controller"


class Network(ABC):
    """A running network, started on entry and ended on exit; subclasses make its links.

    name: unique across all networks. places: where commands run, by host or switch. p4runtime: addresses by
    switch.
    """

    def __init__(self, topology: Topology, switch: SwitchKind = "embedded", *, restart: bool = False) -> None:
        """restart: whether to restart a switch or a server that ends by itself, instead of raising."""
        self.topology = topology
        self.switch = switch
        self._restart = restart
        self.name = uuid.uuid4().hex
        self.places: dict[str, Place] = {}
        self.p4runtime: dict[str, str] = {}
        self._stack, self._job_stack = ExitStack(), ExitStack()
        self._processes: dict[str, RestartableProcess] = {}
        #: A file that exists while workers can take their seats; None without a job.
        self.seats_file: Path | None = None
        self._generations = 0

    def __enter__(self) -> Self:
        try:
            with self._marked():
                self._start()
                self._start_job()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def processes(self) -> dict[str, int]:
        """The process ids of switches, controller and server, by name."""
        return {name: process.child.pid for name, process in self._processes.items()}

    def check(self) -> list[str]:
        """Return the events since the last call, in words; after that, `places` may have new seats.

        A finished job is admitted again, in a new generation. Raises ProcessError if a process has ended by
        itself and is not to be restarted.
        """
        news = self._told_by_controller()
        ended = [process for process in self._processes.values() if not process.child.running]
        finished = [process for process in ended if process.name == _SERVER and process.child.status == 0]
        with self._marked():
            for process in ended:
                if process not in finished:
                    news.append(self._after_the_end_of(process))
        if finished:
            news.append(f"job: has finished; {self.readmit()}")
        return news

    def readmit(self) -> str:
        """Admit the job again, in a new generation, for restarted workers. Return a line about it."""
        self._job_stack.close()
        with self._marked():
            self._start_job()
        return "admitted again in a new generation"

    def _told_by_controller(self) -> list[str]:
        news = []
        controller = self._processes.get(_CONTROLLER)
        while controller is not None and controller.child.running and controller.child.has_line(0):
            line = controller.child.next_line(0) or {}
            news += [line["event"]] if "event" in line else []
        return news

    def _after_the_end_of(self, process: RestartableProcess) -> str:
        if self._restart or process.again is None:
            return process.restart()
        raise ProcessError(f"{process.child.exit_report()}; with --restart it would have been started again")

    def close(self) -> None:
        """End every process, the ones that use others first."""
        self._job_stack.close()
        self._stack.close()
        self._processes.clear()

    @abstractmethod
    def _start(self) -> None:
        """Start everything but the job."""

    @abstractmethod
    def _start_job(self) -> None:
        """Admit the job, if there is one, start its server, and fill `places`."""

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """Set the network's marker, which processes that the body starts inherit."""
        before = os.environ.get(MARKER)
        os.environ[MARKER] = self.name
        try:
            yield
        finally:
            os.environ.pop(MARKER)
            if before is not None:
                os.environ[MARKER] = before

    def _child(self, stack: ExitStack, name: str, *arguments: str) -> dict[str, Any]:
        """Start a `peelsum` command, which ends with `stack`; return its first object."""
        child, said = _ready(name, *arguments)
        self._play(stack, child)
        return said

    def _play(self, stack: ExitStack, child: Child) -> None:
        """Register a child under its name until `stack` ends."""
        self._processes[child.name] = process = RestartableProcess(child)
        stack.callback(process.stop)

    def _admit(self, job: JobNode, *, addressed: bool) -> dict[str, Any]:
        """Admit the job; `addressed` is whether packets to hosts must carry their addresses."""
        folder = files_of(self.name)  # which `down` removes if this process is killed
        folder.mkdir()
        self._job_stack.callback(shutil.rmtree, folder)
        # Another one for each generation: a record of the last one must not find a file again.
        self._generations += 1
        self.seats_file = folder / f"seats-{self._generations}"
        self.seats_file.touch()
        path = folder / "job.toml"
        window = job.window or _WINDOWS[self.switch]
        path.write_text(jobs.description(self.topology, job, self.p4runtime, window, addressed=addressed))
        return self._child(self._job_stack, _CONTROLLER, "job", "admit", str(path), "--hold")

    def _serve(self, switch: str, admission: Mapping[str, Any], *more: str, pid: int | None = None) -> None:
        assert self.seats_file is not None
        options = ("server", "run", "--switch", switch, *more, "--seats", str(self.seats_file))
        start = partial(_ready, _SERVER, *options, pid=pid, environment={ADMISSION: json.dumps(admission)})
        self._play(self._job_stack, start()[0])
        # Removed first when the job ends: `exec` gives out no seat whose server is about to end.
        self._job_stack.callback(self.seats_file.unlink, missing_ok=True)
        self._processes[_SERVER].again = lambda: start()[0]

    def _place(
        self, host: str, address: tuple[str, int], wire: str, admission: Mapping[str, Any] | None, **more: Any
    ) -> dict[str, str]:
        """Return a host's environment: the marker and, for a worker, its seat with the fields of `more`."""
        environment = {MARKER: self.name}
        job = self.topology.job
        if admission is not None and job is not None and host in job.workers:
            seat = {
                "worker_id": jobs.worker_numbers(self.topology, job)[host],
                "switch_host": address[0],
                "switch_port": address[1],
                "admission": admission,
                "wire": wire,
                **more,
            }
            environment[SEAT] = json.dumps(seat)
        return environment


class UdpNetwork(Network):
    """A network over loopback UDP: a switch is a process with a UDP port for each of its ports."""

    def __init__(self, topology: Topology, switch: SwitchKind = "embedded", *, restart: bool = False) -> None:
        super().__init__(topology, switch, restart=restart)
        self._udp_ports: dict[str, dict[int, int]] = {}

    def _start(self) -> None:
        if self.switch != "embedded":
            raise TopologyError(f"switch: {self.switch}: has no UDP ports; use --links veth with it")
        for number, name in enumerate(self.topology.switches, 1):
            self._udp_ports[name] = self._run(name, number)

    def _start_job(self) -> None:
        at = {
            host: (_LOOPBACK, self._udp_ports[switch][port])
            for host, (switch, port) in self.topology.attachments.items()
        }
        job, admission = self.topology.job, None
        if job is not None:
            admission = self._admit(job, addressed=False)
            self._serve("{}:{}".format(*at[job.server]), admission)
        # All hosts are this machine, so a command that starts several workers may have all seats.
        numbers = jobs.worker_numbers(self.topology, job) if job is not None else {}
        seats = ["{}:{}".format(*at[host]) for host in sorted(numbers, key=lambda host: numbers[host])]
        for host, address in at.items():
            self.places[host] = Place(None, self._place(host, address, "udp-port", admission, switch=seats))
        for switch in self.topology.switches:
            self.places[switch] = Place(None, {MARKER: self.name})

    def _run(self, name: str, device_id: int) -> dict[int, int]:
        """Start a switch; return its UDP ports by switch port."""
        losses = {link.loss for link in self.topology.links for end in link.ends if _switch_of(end) == name}
        if len(losses) > 1:
            raise TopologyError(
                f"loss: links of {name} lose {sorted(losses)}: over UDP a switch has one share for all its "
                "ports; give them the same, or use --links veth"
            )
        options = ["--ports", str(max(self.topology.ports(name), default=1)), "--device-id", str(device_id)]
        options += ["--loss", str(max(losses, default=0.0))]
        for port, mbit in self.topology.rates(name).items():
            options += ["--port-rate", f"{port}@{mbit}"]
        for port, latency_ms, to_host in self.topology.latencies(name):
            options += ["--port-delay", f"{port}@{latency_ms}"]
            # Between switches, each delays what it sends; hosts delay nothing.
            options += ["--arrival-delay", f"{port}@{latency_ms}"] if to_host else []
        command = ("switch", "run", *options)
        free = ("--p4runtime", f"{_LOOPBACK}:0")
        listening = self._child(self._stack, name, *command, *free, *self._joins(name))
        self.p4runtime[name] = f"{_LOOPBACK}:{listening['grpc_port']}"
        udp_ports = {int(port): udp for port, udp in listening["udp_ports"].items()}
        same = ["--p4runtime", self.p4runtime[name]]
        for port, udp in udp_ports.items():
            same += ["--udp-port", f"{port}@{udp}"]
        # A restarted switch has to say hello on its trunks itself: its neighbours no longer do.
        self._processes[name].again = lambda: _ready(name, *command, *same, *self._joins(name))[0]
        return udp_ports

    def _joins(self, name: str) -> list[str]:
        """Return options that join a switch's ports to ports of switches that already listen."""
        return [
            word
            for other, udp_ports in self._udp_ports.items()
            if (trunk := self.topology.trunks.get((name, other)))
            for word in ("--join", f"{trunk[0]}@{_LOOPBACK}:{udp_ports[trunk[1]]}")
        ]


class VethNetwork(Network):
    """A network over virtual Ethernet: a network namespace for each host, and one for all switches.

    This process enters the latter permanently. Hosts have addresses, and neighbour entries for each other and
    for the switches.
    """

    def __init__(self, topology: Topology, switch: SwitchKind = "embedded", *, restart: bool = False) -> None:
        super().__init__(topology, switch, restart=restart)
        self._holders: dict[str, int] = {}

    def _start(self) -> None:
        if self.switch == "bmv2" and not bmv2.available():
            raise TopologyError(f"switch: {bmv2.BINARY}: not found on PATH; install BMv2, or use embedded")
        for tool in ("nsenter", "sleep"):
            if shutil.which(tool) is None:
                raise TopologyError(f"{tool}: not found on PATH; install util-linux and coreutils")
        enter_own_namespace()
        for host in self.topology.hosts:
            self._holders[host] = self._hold()
        for link in self.topology.links:
            _lay(self.topology, link, self._holders)
        for host, pid in self._holders.items():
            self._configure(host, pid)
        for number, name in enumerate(self.topology.switches, 1):
            self.p4runtime[name] = self._run(name, number)
        for host, pid in self._holders.items():
            self._run_commands(host, pid)

    def _hold(self) -> int:
        holder = hold_namespace()
        self._stack.callback(holder.wait)
        self._stack.callback(holder.kill)
        return holder.pid

    def _configure(self, host: str, pid: int) -> None:
        link = next(link for link in self.topology.links if host in link.ends)
        names = [name for name in (*self.topology.hosts, *self.topology.switches) if name != host]
        addresses = map(self.topology.address_of, names)
        neighbours = {ip.partition("/")[0]: mac for mac, ip in addresses}
        configure_host(pid, self.topology.address_of(host)[1], neighbours)
        shape(HOST_INTERFACE, rate_mbit=link.rate_mbit, latency_ms=link.latency_ms, pid=pid)

    def _run(self, name: str, device_id: int) -> str:
        """Start a switch on its interfaces; return its P4Runtime address in the switches' namespace."""
        interfaces = {port: f"{name}-p{port}" for port in self.topology.ports(name)}
        if self.switch == "bmv2":
            address, child = bmv2.start(interfaces, name=name, device_id=device_id)
            self._play(self._stack, child)
            self._processes[name].again = lambda: bmv2.start(
                interfaces, name=name, device_id=device_id, address=address
            )[1]
            return address
        # Frames that leave by AF_XDP would pass by the links' rates and delays, which `tc` keeps.
        command = ["switch", "run", "--device-id", str(device_id), "--ports-by", "packet"]
        command += [word for port, end in interfaces.items() for word in ("--interface", f"{port}@{end}")]
        listening = self._child(self._stack, name, *command, "--p4runtime", f"{_LOOPBACK}:0")
        address = f"{_LOOPBACK}:{listening['grpc_port']}"
        self._processes[name].again = lambda: _ready(name, *command, "--p4runtime", address)[0]
        return address

    def _start_job(self) -> None:
        job, admission = self.topology.job, None
        if job is not None:
            switch = self._addressed(job.server)
            admission = self._admit(job, addressed=True)
            server = f"{switch[0]}:{switch[1]}"
            self._serve(server, admission, "--ethernet", pid=self._holders[job.server])
        for host, pid in self._holders.items():
            environment = self._place(host, self._addressed(host), "ethernet", admission)
            self.places[host] = Place(Process.of(pid), environment)
        for switch_name in self.topology.switches:
            self.places[switch_name] = Place(Process.of(os.getpid()), {MARKER: self.name})

    def _addressed(self, host: str) -> tuple[str, int]:
        """Return the address to which a host sends contributions."""
        switch = self.topology.attachments[host][0]
        return self.topology.address_of(switch)[1].partition("/")[0], UDP_PORT

    def _run_commands(self, host: str, pid: int) -> None:
        for command in self.topology.hosts[host].commands:
            done = subprocess.run(
                inside(pid, "sh", "-c", command), capture_output=True, text=True, check=False
            )
            if done.returncode:
                reason = done.stderr.strip() or f"status {done.returncode}"
                raise TopologyError(f"hosts.{host}.commands: {command!r}: {reason}; correct it")


def _ready(
    name: str, *arguments: str, pid: int | None = None, environment: Mapping[str, str] | None = None
) -> tuple[Child, dict[str, Any]]:
    """Start a `peelsum` command, in the namespace of `pid` if given; return it and its first object."""
    prefix = () if pid is None else inside(pid)
    child = Child.peelsum(name, *arguments, "--json", "--child", prefix=prefix, environment=environment)
    try:
        return child, child.ready()
    except BaseException:
        child.stop()
        raise


def _switch_of(end: str) -> str | None:
    port = switch_port(end)
    return port[0] if port else None


def _lay(topology: Topology, link: Link, holders: Mapping[str, int]) -> None:
    """Make one link, with its rate, latency and loss."""
    (one, other) = sorted(link.ends, key=lambda end: end in holders)  # the switch's end first
    near, far = (one + "x", one + "y") if link.loss else (other, one)
    if link.loss:
        add_wire(one, near)
    if other in holders:
        attach_host(far, holders[other], topology.address_of(other)[0])
    else:
        add_wire(far, other)
    if link.loss:
        bridge(one + "b", near, far)
        lose(link.loss, near, far)
    for end in (end for end in link.ends if end not in holders):
        shape(end, rate_mbit=link.rate_mbit, latency_ms=link.latency_ms)

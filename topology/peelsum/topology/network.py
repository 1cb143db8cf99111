"""Run a described network on this machine: switches, and the job's controller and aggregation server.

Links are UDP over loopback (`UdpNetwork`, without privileges), or virtual Ethernet between network namespaces
(`VethNetwork`, as root).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from peelsum.processes.children import ADMISSION, Child, RestartableProcess
from peelsum.processes.user_errors import ProcessError
from peelsum.topology import bmv2
from peelsum.topology.description import JobNode, Link, Topology, job_description, worker_numbers
from peelsum.topology.errors import TopologyError
from peelsum.topology.namespaces import (
    HOST_INTERFACE,
    add_wire,
    attach_host,
    bridge,
    configure_host,
    drop_packets,
    enter_own_namespace,
    hold_namespace,
    inside,
    shape,
)
from peelsum.topology.records import MARKER, ExecContext, Process, files_of
from peelsum.transport.seats import SEAT
from peelsum.wire import UDP_PORT

SwitchKind = Literal["softswitch", "bmv2"]
#: The default window, in chunks. BMv2's queues have room for 64 packets per port.
_WINDOWS = {"softswitch": 512, "bmv2": 64}
_LOOPBACK = "127.0.0.1"
_SERVER, _CONTROLLER = "server", "controller"


class Network(ABC):
    """A network, as a context manager that starts and ends it. Subclasses create the links.

    name: a unique name. places: the place of each host and switch, where commands can run.
    p4runtime: the P4Runtime address of each switch.
    """

    #: How hosts send packets, as a seat names it.
    wire: Literal["udp-port", "ethernet"]

    def __init__(
        self, topology: Topology, switch: SwitchKind = "softswitch", *, restart: bool = False
    ) -> None:
        """switch: the kind of switches. restart: whether `check` restarts switches and servers that ended."""
        self.topology = topology
        self.switch = switch
        self._restart = restart
        self.name = uuid.uuid4().hex
        self.places: dict[str, ExecContext] = {}
        self.p4runtime: dict[str, str] = {}
        self._stack, self._job_stack = ExitStack(), ExitStack()
        #: The process that holds the network namespace of each host that has its own.
        self._holders: dict[str, int] = {}
        self._processes: dict[str, RestartableProcess] = {}
        #: A file that exists while workers can join the job; None without a job.
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
        """The ids of the processes of switches, controller and server, by name."""
        return {name: process.child.pid for name, process in self._processes.items()}

    def check(self) -> list[str]:
        """Check all processes; return a line for each event since the last call.

        If the job has finished, admit it again in a new generation, so that `places` has new seats. Raises
        ProcessError if a process has ended by itself and cannot be restarted.
        """
        events, finished, job = [], False, self.topology.job
        controller = self._processes.get(_CONTROLLER)
        while controller is not None and controller.child.running and controller.child.has_message(0):
            line = controller.child.next_message(0) or {}
            events += [line["event"]] if "event" in line else []
        with self._marked():
            for process in [process for process in self._processes.values() if not process.child.running]:
                if process.name == _SERVER and process.child.status == 0:
                    finished = True
                elif self._restart or process.again is None:
                    events.append(process.restart())
                    if job and job.program and process.name == self.topology.attachments[job.server][0]:
                        self._load_program(job)
                else:
                    report = process.child.exit_report()
                    raise ProcessError(f"{report}; with --restart it would have been started again")
        if finished:
            events.append(f"job: has finished; {self.readmit()}")
        return events

    def readmit(self) -> str:
        """Admit the job again in a new generation, for restarted workers; return a line about it.

        A job's own program is loaded again.
        """
        self._job_stack.close()
        with self._marked():
            self._start_job()
        return "admitted again in a new generation"

    def close(self) -> None:
        """End all processes, in the reverse order of their start."""
        self._job_stack.close()
        self._stack.close()
        self._processes.clear()

    @abstractmethod
    def _start(self) -> None:
        """Start the switches and create the links."""

    @abstractmethod
    def _switch_address(self, host: str) -> tuple[str, int]:
        """Return the address to which a host sends its packets."""

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """Set the network's marker in the environment, which processes inherit that the body starts."""
        previous = {name: os.environ[name] for name in (MARKER,) if name in os.environ}
        os.environ[MARKER] = self.name
        try:
            yield
        finally:
            del os.environ[MARKER]
            os.environ.update(previous)

    def _child(self, stack: ExitStack, name: str, *arguments: str) -> dict[str, Any]:
        """Start a `peelsum` command that ends with `stack`; return its first message."""
        child, message = Child.start_ready(name, *arguments)
        self._register(stack, child)
        return message

    def _register(self, stack: ExitStack, child: Child, again: Callable[[], Child] | None = None) -> None:
        """Add a child to the network's processes. It is stopped when `stack` ends. `again` restarts it."""
        self._processes[child.name] = process = RestartableProcess(child, again)
        stack.callback(process.stop)

    def _start_job(self) -> None:
        """Admit the job and start its server, if there is a job, and set `places`."""
        job, numbers, seat = self.topology.job, dict[str, int](), dict[str, Any]()
        self._generations += 1
        if job is not None and job.program is not None:
            self._load_program(job)
            places = (*job.workers, job.server)
            numbers = {host: number for number, host in enumerate(places)}
            ports = [self.topology.attachments[host][1] for host in places]
            seat = {"job": job.id, "lanes": job.lanes, "ports": ports, "wire": self.wire, "hosts": places}
            seat |= {"program": job.program.name, "timeout_s": job.timeout_s, "window": job.window}
            seat["generation"] = self._generations  # so that `readmit` sees that it is another
        elif job is not None:
            folder = files_of(self.name)  # which `down` removes if this process is killed
            folder.mkdir()
            self._job_stack.callback(shutil.rmtree, folder)
            # Each generation has its own file, so that `exec` does not use seats of the last generation.
            self.seats_file = folder / f"seats-{self._generations}"
            self.seats_file.touch()
            path, window = folder / "job.toml", job.window or _WINDOWS[self.switch]
            # Switches must write the hosts' addresses into packets for hosts in networks of their own.
            addressed = self.wire == "ethernet"
            path.write_text(job_description(self.topology, job, self.p4runtime, window, addressed=addressed))
            admission = self._child(self._job_stack, _CONTROLLER, "job", "admit", str(path), "--hold")
            self._start_server(job.server, admission)
            numbers = worker_numbers(self.topology, job)
            seat = {"admission": admission, "wire": self.wire}
            if self.wire == "udp-port":
                # All hosts are this machine, so a command can start several workers, and needs all addresses.
                hosts = sorted(numbers, key=lambda host: numbers[host])
                seat["switch"] = ["{}:{}".format(*self._switch_address(host)) for host in hosts]
        for host in self.topology.hosts:
            environment = {MARKER: self.name}
            if host in numbers:
                at = dict(zip(("switch_host", "switch_port"), self._switch_address(host), strict=True))
                environment[SEAT] = json.dumps({"worker_id": numbers[host], **at, **seat})
            holder = self._holders.get(host)
            self.places[host] = ExecContext(None if holder is None else Process.of(holder), environment)
        here = None if self.wire == "udp-port" else Process.of(os.getpid())
        for switch in self.topology.switches:
            self.places[switch] = ExecContext(here, {MARKER: self.name})

    def _load_program(self, job: JobNode) -> None:
        """Load the job's own program into its switch. Raises TopologyError."""
        from peelsum.topology.programs import load_program  # imported here because it is slow and rare

        assert job.program is not None
        switch = self.topology.attachments[job.server][0]
        ports = [self.topology.attachments[worker][1] for worker in job.workers]
        device_id = list(self.topology.switches).index(switch) + 1
        load_program(job.program, job.lanes, self.p4runtime[switch], device_id, job.id, ports)

    def _start_server(self, host: str, admission: Mapping[str, Any]) -> None:
        """Start the aggregation server at a host."""
        assert self.seats_file is not None
        options = ["server", "run", "--switch", "{}:{}".format(*self._switch_address(host))]
        options += [*(["--ethernet"] if self.wire == "ethernet" else []), "--seats", str(self.seats_file)]
        prefix = inside(self._holders[host]) if host in self._holders else ()
        environment = {ADMISSION: json.dumps(admission)}

        def start() -> Child:
            return Child.start_ready(_SERVER, *options, prefix=prefix, environment=environment)[0]

        self._register(self._job_stack, start(), start)
        # When the job ends, this file is removed first, so that `exec` starts no worker without a server.
        self._job_stack.callback(self.seats_file.unlink, missing_ok=True)


class UdpNetwork(Network):
    """A network over loopback: each port of a switch is a UDP socket."""

    wire = "udp-port"

    def _start(self) -> None:
        self._udp_ports: dict[str, dict[int, int]] = {}
        if self.switch != "softswitch":
            raise TopologyError(f"switch: {self.switch}: has no UDP ports; use --links veth with it")
        for number, name in enumerate(self.topology.switches, 1):
            self._udp_ports[name] = self._start_switch(name, number)

    def _switch_address(self, host: str) -> tuple[str, int]:
        switch, port = self.topology.attachments[host]
        return _LOOPBACK, self._udp_ports[switch][port]

    def _start_switch(self, name: str, device_id: int) -> dict[int, int]:
        """Start a switch; return the UDP port of each of its ports."""
        cables = self.topology.cables(name)
        options = ["--ports", str(cables[-1][0] if cables else 1), "--device-id", str(device_id)]
        for field in ("loss", "loss_burst", "late"):
            values = {getattr(link, field) for _, link, _ in cables}
            if len(values) > 1:
                raise TopologyError(
                    f"{field}: links of {name} have {sorted(values, key=str)}: over UDP a switch has one "
                    f"value for all ports; give them the same{', or use --links veth' * (field == 'loss')}"
                )
            if value := max(values, default=None):
                options += [f"--{field.replace('_', '-')}", str(value)]
        for port, link, other in cables:
            if link.rate_mbit is not None:
                options += ["--port-rate", f"{port}@{link.rate_mbit}"]
            # On a link between switches, each switch delays the packets that it sends. A host delays none.
            delays = ["--port-delay", *(["--arrival-delay"] if other in self.topology.hosts else [])]
            if link.latency_ms:
                options += [word for delay in delays for word in (delay, f"{port}@{link.latency_ms}")]
        command = ("switch", "run", *options)
        free = ("--p4runtime", f"{_LOOPBACK}:0")
        listening = self._child(self._stack, name, *command, *free, *self._peer_options(name))
        self.p4runtime[name] = f"{_LOOPBACK}:{listening['grpc_port']}"
        udp_ports = {int(port): udp for port, udp in listening["udp_ports"].items()}
        same = ["--p4runtime", self.p4runtime[name]]
        for port, udp in udp_ports.items():
            same += ["--udp-port", f"{port}@{udp}"]
        # A restarted switch has to send hellos on its trunks, because its neighbours no longer do.
        self._processes[name].again = lambda: Child.start_ready(
            name, *command, *same, *self._peer_options(name)
        )[0]
        return udp_ports

    def _peer_options(self, name: str) -> list[str]:
        """Return the options that connect a switch's ports to those of switches that have been started."""
        return [
            word
            for other, udp_ports in self._udp_ports.items()
            if (trunk := self.topology.trunks.get((name, other)))
            for word in ("--join", f"{trunk[0]}@{_LOOPBACK}:{udp_ports[trunk[1]]}")
        ]


class VethNetwork(Network):
    """A network over virtual Ethernet: each host has a network namespace, and all switches share one.

    This process enters the switches' namespace, and stays there. Hosts have addresses, and neighbour entries
    for all other hosts and the switches.
    """

    wire = "ethernet"

    def _start(self) -> None:
        if self.switch == "bmv2" and not bmv2.available():
            raise TopologyError(f"switch: {bmv2.BINARY}: not found on PATH; install BMv2, or use softswitch")
        for link in self.topology.links:
            if link.loss_burst is not None or link.late:
                raise TopologyError(f"link {link}: has loss_burst or late, which need UDP; use --links udp")
        for tool in ("nsenter", "sleep"):
            if shutil.which(tool) is None:
                raise TopologyError(f"{tool}: not found on PATH; install util-linux and coreutils")
        enter_own_namespace()
        self._holders = {host: hold_namespace(self._stack) for host in self.topology.hosts}
        for link in self.topology.links:
            _create_link(self.topology, link, self._holders)
        for host, pid in self._holders.items():
            self._configure(host, pid)
        for number, name in enumerate(self.topology.switches, 1):
            self.p4runtime[name] = self._start_switch(name, number)
        for host, pid in self._holders.items():
            for command in self.topology.hosts[host].commands:
                words = inside(pid, "sh", "-c", command)
                done = subprocess.run(words, capture_output=True, text=True, check=False)
                if done.returncode:
                    reason = done.stderr.strip() or f"status {done.returncode}"
                    raise TopologyError(f"hosts.{host}.commands: {command!r}: {reason}; correct it")

    def _configure(self, host: str, pid: int) -> None:
        """Configure a host's interface and neighbours, and shape what it sends."""
        link = next(link for link in self.topology.links if host in link.ends)
        names = [name for name in (*self.topology.hosts, *self.topology.switches) if name != host]
        addresses = map(self.topology.address_of, names)
        neighbours = {ip.partition("/")[0]: mac for mac, ip in addresses}
        configure_host(pid, self.topology.address_of(host)[1], neighbours)
        shape(HOST_INTERFACE, rate_mbit=link.rate_mbit, latency_ms=link.latency_ms, pid=pid)

    def _start_switch(self, name: str, device_id: int) -> str:
        """Start a switch on its interfaces; return its P4Runtime address."""
        interfaces = {port: f"{name}-p{port}" for port, _, _ in self.topology.cables(name)}
        if self.switch == "bmv2":
            start = partial(bmv2.start, interfaces, name=name, device_id=device_id)
            address, child = start()
            self._register(self._stack, child, lambda: start(address=address)[1])
            return address
        # Frames that are sent by AF_XDP would bypass the rates and delays, which `tc` applies.
        command = ["switch", "run", "--device-id", str(device_id), "--ports-by", "packet"]
        command += [word for port, end in interfaces.items() for word in ("--interface", f"{port}@{end}")]
        listening = self._child(self._stack, name, *command, "--p4runtime", f"{_LOOPBACK}:0")
        address = f"{_LOOPBACK}:{listening['grpc_port']}"
        self._processes[name].again = lambda: Child.start_ready(name, *command, "--p4runtime", address)[0]
        return address

    def _switch_address(self, host: str) -> tuple[str, int]:
        switch = self.topology.attachments[host][0]
        return self.topology.address_of(switch)[1].partition("/")[0], UDP_PORT


def _create_link(topology: Topology, link: Link, holders: Mapping[str, int]) -> None:
    """Create one link, with its rate, latency and loss.

    holders: the process that holds each host's namespace.
    """
    (switch_end, other_end) = sorted(link.ends, key=lambda end: end in holders)  # the switch's end first
    near, far = (switch_end + "x", switch_end + "y") if link.loss else (other_end, switch_end)
    if link.loss:
        add_wire(switch_end, near)
    if other_end in holders:
        attach_host(far, holders[other_end], topology.address_of(other_end)[0])
    else:
        add_wire(far, other_end)
    if link.loss:
        bridge(switch_end + "b", near, far)
        drop_packets(link.loss, near, far)
    for end in (end for end in link.ends if end not in holders):
        shape(end, rate_mbit=link.rate_mbit, latency_ms=link.latency_ms)

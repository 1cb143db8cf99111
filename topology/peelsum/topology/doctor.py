"""Check this machine, a job's switches and a cluster: what was found, what is expected, and what to do."""

from __future__ import annotations

import errno
import os
import resource
import select
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from peelsum.compiling import cache
from peelsum.control import ControlError, JobDescription, RacksDescription, open_session, read_status
from peelsum.control.cluster import ControllerClient, observe_cluster
from peelsum.extras import install_command
from peelsum.softswitch.ports.interfaces import best_port_method
from peelsum.tls import TlsIdentity
from peelsum.wire import packet_bytes
from peelsum.wire.datagrams import BatchSocket
from peelsum.wire.mtu import mtu_of, required_mtu

State = Literal["ok", "note", "failed"]
_UDP_SEGMENT, _UDP_GRO = 103, 104
#: The size of datagrams that are sent as a test.
_SIZE = 1000
_RECEIVE_TIMEOUT_S = 1.0
#: The time limit of a switch's answers. On a busy machine, the softswitch takes a second.
_ANSWER_S = 3.0
#: What is needed: memory for compiling a program, disk space for machine code, and file descriptors.
_MEMORY, _CODE, _DESCRIPTORS = 1 << 30, 100 << 20, 256
#: Packages, each with the extra that has it if it is optional.
_PACKAGES = dict.fromkeys(("numpy", "numba", "grpcio", "finsy", "pydantic")) | {"torch": "torch"}
_PACKAGES |= dict.fromkeys(("cryptography", "prometheus_client", "structlog"), "ops")
_PROGRAMS = {
    "p4c-bm2-ss": "only `peelsum switch compile` needs p4c",
    "simple_switch_grpc": "only BMv2 as a switch needs it",
    "ip": "only networks of namespaces need it: apt-get install iproute2",
    "nft": "only tests of firewalls need it: apt-get install nftables",
}
#: The default ports of commands.
_PORTS = {
    9559: "switch run --p4runtime",
    9560: "job serve --listen",
    9564: "controller run --listen",
}


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str
    """The subject of the check."""
    result: str
    """The observed value."""
    expected: str
    """The expected value."""
    remedy: str
    """What to do; empty if nothing has to be done."""
    state: State
    """`failed` if a requirement is missing, `note` if something is slower or unavailable, otherwise `ok`."""


def examine(lanes: int = 256, window: int = 512) -> Iterator[Finding]:
    """Check this machine, for packets of `lanes` lanes and a window of `window` chunks. Yield findings."""
    for name, extra in _PACKAGES.items():
        yield _package(name, extra)
    cores, limit = len(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    remedy = "a switch, a server and workers share one core: expect a fraction of the figures in the docs"
    yield _check_result("processor cores", str(cores), "2 or more", remedy, cores >= 2, "note")
    yield _memory()
    remedy = "ulimit -n 4096, or LimitNOFILE= in a unit: every port and connection takes one"
    enough = limit >= _DESCRIPTORS or limit == resource.RLIM_INFINITY
    yield _check_result("file descriptors", str(limit), f"{_DESCRIPTORS} or more", remedy, enough)
    yield _compiled_code()
    if enough:
        yield from _loopback()
        yield _buffers(lanes, window)
    yield from _mtu(lanes)
    root = os.geteuid() == 0
    allowed = _read_text(Path("/proc/sys/user/max_net_namespaces")) not in ("0", "unknown")
    report = f"{'root' if root else 'not root'}, {'' if allowed else 'not '}allowed"
    remedy = "only --links veth needs it: run as root, with user.max_net_namespaces above 0"
    yield _check_result("network namespaces", report, "root, allowed", remedy, root and allowed, "note")
    for port, who in _PORTS.items():
        yield _port(port, who)
    yield _clock()
    for name, why in _PROGRAMS.items():
        path = shutil.which(name)
        yield _check_result(name, path or "not on PATH", "on PATH", why, path is not None, "note")


def examine_interface(name: str, lanes: int = 256) -> Iterator[Finding]:
    """Check a network interface that is to become a switch's port. Yield findings.

    This needs the privileges of a switch. It opens and closes a port there, and peelsum's packets that arrive
    in between are lost.
    """
    method = _method(name)
    yield method
    if method.state == "failed":
        return
    mtu, needed = mtu_of(name), required_mtu(packet_bytes(lanes))
    remedy = f"ip link set {name} mtu {needed}, and then start the switch; or use fewer lanes"
    yield _check_result(f"{name}: MTU", str(mtu), f"{needed} or more", remedy, mtu >= needed, "failed")
    sysfs = Path("/sys/class/net", name)
    if not sysfs.is_dir():  # /sys is another network namespace's
        return
    state, speed = (_read_text(sysfs / name_part) for name_part in ("operstate", "speed"))
    known = f", {speed} Mbit/s" if speed.isdecimal() else ""
    remedy = f"ip link set {name} up, and look at the cable and the other end"
    yield _check_result(f"{name}: link", f"{state}{known}", "up", remedy, state != "down", "note")
    queues = len(list(sysfs.glob("queues/rx-*")))
    remedy = f"ethtool -L {name} combined 1; a port by AF_XDP has one queue"
    yield _check_result(f"{name}: queues", str(queues), "1", remedy, queues == 1, "note")
    interrupts = sorted(path.name for path in sysfs.glob("device/msi_irqs/*"))
    if interrupts:
        cores = sorted(
            {_read_text(Path("/proc/irq", name_part, "effective_affinity_list")) for name_part in interrupts}
        )
        remedy = (
            f"stop irqbalance; echo CORE > /proc/irq/{interrupts[0]}/smp_affinity_list, not the switch's core"
        )
        yield _check_result(
            f"{name}: interrupts", f"on {', '.join(cores)}", "one core", remedy, len(cores) == 1, "note"
        )


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return "unknown"


def _method(name: str) -> Finding:
    """Check by which method, AF_XDP or AF_PACKET, a switch can use an interface."""
    what = f"interface {name}"
    try:
        method, why = best_port_method(name)
    except OSError as error:
        reason, _, remedy = (error.strerror or "").partition("; ")
        return Finding(what, reason.rpartition(": ")[2], "AF_XDP or AF_PACKET", remedy, "failed")
    if method == "packet" and why == os.strerror(errno.EBUSY):
        why += "; stop the switch, or the program with AF_XDP, that has the interface"
    if method == "packet":
        return Finding(what, "AF_PACKET", "AF_XDP", f"AF_XDP failed: {why}", "note")
    remedy = "its driver has no XDP, so the kernel copies frames once more"
    return _check_result(what, f"AF_XDP, {why}", "AF_XDP, native", remedy, why == "native", "note")


def examine_job(
    job: JobDescription | RacksDescription, identity: TlsIdentity | None = None
) -> Iterator[Finding]:
    """Check the switches of a job over P4Runtime, without changing anything. Yield findings."""
    for plan in job.plans():
        address, expected_lanes = plan.switch.p4runtime, plan.switch.pipeline_lanes
        switch = f"switch {address}"
        try:
            with open_session(
                *plan.switch.place, plan.switch.tofino, timeout_s=_ANSWER_S, identity=identity
            ) as session:
                status = None if session.schema is None else read_status(session)
        except ControlError as error:
            reason, _, remedy = str(error).partition("; ")
            yield Finding(switch, reason, "answers P4Runtime", remedy, "failed")
            continue
        yield _check_result(switch, "answers P4Runtime", "answers P4Runtime", "", True)
        lanes = 0 if status is None else status.lanes
        admit = "run: peelsum job admit, or start the training if `job serve` runs"
        yield _check_result(
            f"{switch}: pipeline", f"{lanes} lanes", f"{expected_lanes} lanes", admit, lanes == expected_lanes
        )
        if status is None:
            continue
        admitted = {row.job_id: row for row in status.jobs}.get(job.job.id)
        what = f"{switch}: job {job.job.id}"
        text = "not admitted"
        if admitted is not None:
            ports = ", ".join(map(str, (admitted.worker_ports or admitted.rack_ports).values()))
            text = f"generation {admitted.generation}, ports {ports}, server at {admitted.server_port}"
        yield _check_result(what, text, "admitted", admit, admitted is not None)
        refused = {
            name.name.lower(): n
            for name, n in status.verdicts.items()
            if n and name.name in _REFUSING_VERDICTS
        }
        counts = ", ".join(f"{n} {name}" for name, n in refused.items()) or "none"
        hint = "packets of another job, generation or port: compare ports and admission"
        yield _check_result(f"{switch}: refused packets", counts, "none", hint, not refused, "note")


def examine_cluster(controllers: Sequence[str], identity: TlsIdentity | None = None) -> Iterator[Finding]:
    """Check a cluster's controllers and switches, and compare desired and actual jobs. Yield findings."""
    primary = None
    for address in controllers:
        what = f"controller {address}"
        try:
            listed = ControllerClient([address], identity, patience_s=0.0).list()
        except ControlError as error:
            reason, _, remedy = str(error).partition("; ")
            yield Finding(what, reason, "primary or backup", remedy, "note")
            continue
        primary = listed
        yield _check_result(what, f"primary, epoch {listed['epoch']}", "primary or backup", "", True)
    if primary is None:
        remedy = "start `peelsum controller run`, or give the addresses of all controllers"
        yield Finding("cluster", "no primary answers", "a primary", remedy, "failed")
        return
    report = observe_cluster(primary, identity)
    for switch in report["switches"]:
        state = switch["trouble"].partition("; ")[0] or switch["state"]
        remedy = "start the switch, or see what the controller prints"
        is_up = switch["state"] == "up" and not switch["trouble"]
        yield _check_result(f"switch {switch['p4runtime']}", state, "up", remedy, is_up)
    for job in report["jobs"]:
        desired, actual = (
            "not admitted" if generation is None else f"generation {generation}"
            for generation in (job["desired"], job["actual"])
        )
        waits = job["state"].startswith("waits")
        remedy = job["state"] if waits else "look again after a poll; the controller repairs it"
        name = f"job {job['job_id']} on {job['p4runtime']}"
        yield _check_result(name, actual, desired, remedy, job["agrees"])


_REFUSING_VERDICTS = (
    "UNKNOWN_JOB",
    "WRONG_GENERATION",
    "FOREIGN_PORT",
    "WRONG_SENDER",
    "BAD_LENGTH",
    "BAD_VERSION",
    "NO_RETURN_PATH",
)


def _check_result(
    subject: str, observed_value: str, expected: str, remedy: str, is_ok: bool, otherwise: State = "failed"
) -> Finding:
    return Finding(subject, observed_value, expected, "" if is_ok else remedy, "ok" if is_ok else otherwise)


def _package(name: str, extra: str | None) -> Finding:
    """Check that a package is installed. extra: the extra that has an optional package."""
    try:
        installed = version(name)
    except PackageNotFoundError:
        remedy = install_command(name, extra or "cli")
        return Finding(name, "not installed", "installed", remedy, "note" if extra else "failed")
    return _check_result(name, installed, "installed", "", True)


def _memory() -> Finding:
    """Check how much memory this process can use: the available memory or, if smaller, a limit."""
    lines = (line.split() for line in _read_text(Path("/proc/meminfo")).splitlines())
    available_kib = next((int(line[1]) for line in lines if line[0] == "MemAvailable:"), 0)
    limits = {"of this machine, available": 1024 * available_kib}
    group = Path("/sys/fs/cgroup", _read_text(Path("/proc/self/cgroup")).rpartition("::/")[2])
    for folder in (group, *group.parents):
        if (text := _read_text(folder / "memory.max")).isdecimal():
            limits[f"limit of {folder}"] = int(text)
    if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        limits["limit of the process, ulimit -v"] = limit
    name, smallest = min(limits.items(), key=lambda item: item[1])
    remedy = "compiling a switch program takes nearly 1 GB: raise the limit, or end other programs"
    available = f"{smallest >> 20} MB, {name}"
    return _check_result("memory", available, f"{_MEMORY >> 20} MB or more", remedy, smallest >= _MEMORY)


def _compiled_code() -> Finding:
    """Check the folder for machine code, its free space, and which preferred folders are unusable."""
    examined = list(cache.examine_candidates())
    place, problem = examined[-1]
    report = "; ".join(f"{refused}: {why}" for refused, why in examined if why)
    if not problem:
        free = shutil.disk_usage(place).free
        report = "; ".join(filter(None, (f"{place}, {free >> 20} MB free", report)))
    good = len(examined) == 1 and not problem and free >= _CODE
    remedy = f"{cache.REMEDY}, with {_CODE >> 20} MB free; without one, each start compiles for minutes"
    return _check_result("folder for compiled code", report, "the user's cache", remedy, good, "note")


def _loopback() -> Iterator[Finding]:
    """Check that UDP works between two sockets on loopback, and then both UDP offloads."""
    offload = "needs Linux 5.0 or later; without it, peelsum sends and receives packets one by one"
    # Options of the sender and of the receiver, datagrams that are sent at once, and sizes that must arrive.
    attempts: tuple[tuple[str, dict[int, int], dict[int, int], int, list[int], str, State], ...] = (
        ("loopback", {}, {}, 1, [_SIZE], "as root: ip link set lo up", "failed"),
        ("UDP_SEGMENT on loopback", {_UDP_SEGMENT: _SIZE}, {}, 4, [_SIZE] * 4, offload, "note"),
        ("UDP_GRO on loopback", {_UDP_SEGMENT: _SIZE}, {_UDP_GRO: 1}, 4, [4 * _SIZE], offload, "note"),
    )
    for name, sender_options, receiver_options, count, expected, remedy, otherwise in attempts:
        sender, receiver = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        with sender, receiver:
            try:
                receiver.bind(("127.0.0.1", 0))
                sender.connect(receiver.getsockname())
                for end, options in ((sender, sender_options), (receiver, receiver_options)):
                    for option, value in options.items():
                        end.setsockopt(socket.SOL_UDP, option, value)
                data = os.urandom(count * _SIZE)
                sender.send(data)
                received = [_receive(receiver) for _ in expected]
                sizes = [len(datagram) for datagram in received]
                outcome = "works" if sizes == expected else f"arrived as {sizes}"
                if outcome == "works" and b"".join(received) != data:
                    outcome = "changes datagrams"
            except OSError as error:
                outcome = error.strerror or str(error)
        yield _check_result(name, outcome, "works", remedy, outcome == "works", otherwise)
        if outcome != "works" and not sender_options:
            return


def _receive(receiver: socket.socket) -> bytes:
    """Return the next datagram, or several that the kernel has merged. Raises OSError if nothing arrives."""
    if not select.select([receiver], [], [], _RECEIVE_TIMEOUT_S)[0]:
        raise OSError(f"nothing arrived within {_RECEIVE_TIMEOUT_S:g} s")
    return receiver.recv(1 << 16)


def _buffers(lanes: int, window: int) -> Finding:
    """Check that a socket's buffer has room for a whole window of packets."""
    with closing(BatchSocket.bind(("127.0.0.1", 0), packet_bytes(lanes))) as opened:
        room = opened.room
    limit = _read_text(Path("/proc/sys/net/core/rmem_max"))
    remedy = "as root: sysctl -w net.core.rmem_max=16777216 net.core.wmem_max=16777216; else windows shrink"
    report = f"room for {room} packets (rmem_max {limit})"
    return _check_result("socket buffers", report, f"a window of {window}", remedy, room >= window, "note")


def _mtu(lanes: int) -> Iterator[Finding]:
    """Check the MTU of all interfaces that are up."""
    needed = required_mtu(packet_bytes(lanes))
    for path in sorted(Path("/sys/class/net").glob("*/mtu")):
        name, text = path.parent.name, _read_text(path)
        if not text.isdecimal() or _read_text(path.parent / "operstate") == "down":
            continue
        mtu = int(text)
        remedy = f"ip link set {name} mtu {needed}, if peelsum's packets go there; or use fewer lanes"
        yield _check_result(f"MTU of {name}", str(mtu), f"{needed} or more", remedy, mtu >= needed, "note")


def _port(port: int, who: str) -> Finding:
    """Check that a command can listen at its default port."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
        state = "free"
    except OSError as error:
        state = (error.strerror or "").partition(" (")[0].lower()
    remedy = f"fine if that is peelsum; otherwise give `{who}` another port"
    return _check_result(f"TCP port {port}", state, "free", remedy, state == "free", "note")


def _clock() -> Finding:
    """Check the clock: its date, on which certificates depend, and the cost of reading it, as switches do."""
    reads = 1000
    began = time.perf_counter_ns()
    for _ in range(reads):
        time.monotonic_ns()
    each = (time.perf_counter_ns() - began) / reads
    source = _read_text(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource"))
    report = f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {source}, {each:.0f} ns a reading"
    remedy = "choose another clock source (tsc, kvm-clock): this one is slow to read"
    return _check_result("clock", report, "under 1,000 ns a reading", remedy, each < 1000, "note")

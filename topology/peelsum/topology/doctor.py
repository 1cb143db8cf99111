"""Examines this machine, a job's switches and a cluster: findings, wanted values and remedies."""

from __future__ import annotations

import errno
import os
import resource
import select
import shutil
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from peelsum.compiling import cache
from peelsum.control import (
    AdmittedJob,
    ControlError,
    JobDescription,
    RacksDescription,
    open_session,
    read_status,
)
from peelsum.control.cluster import ControllerClient, observed
from peelsum.extras import install_command
from peelsum.softswitch.ports.interfaces import best_method
from peelsum.tls import Identity
from peelsum.wire import packet_bytes
from peelsum.wire.datagrams import BatchSocket
from peelsum.wire.mtu import mtu_of, needed_mtu

State = Literal["ok", "note", "failed"]
_UDP_SEGMENT, _UDP_GRO = 103, 104
#: Datagrams in one segmented send, and their size.
_SEGMENTS, _SIZE = 4, 1000
_WAIT_S = 1.0
#: How long a switch may take to answer; on a busy machine an embedded one takes a second.
_ANSWER_S = 3.0
#: Bytes of memory for compiling a program, bytes of disk for all machine code, and file descriptors.
_MEMORY, _CODE, _DESCRIPTORS = 1 << 30, 100 << 20, 256
_NEEDED = ("numpy", "numba", "grpcio", "finsy", "pydantic")
_OPTIONAL = {
    "torch": "torch",
    "cryptography": "ops",
    "prometheus_client": "ops",
    "structlog": "ops",
}
_PROGRAMS = {
    "p4c-bm2-ss": "only `peelsum switch compile` needs p4c",
    "simple_switch_grpc": "only BMv2 as a switch needs it",
    "ip": "only networks of namespaces need it: apt-get install iproute2",
    "nft": "only tests of firewalls need it: apt-get install nftables",
}
#: Ports that these commands take by default.
_PORTS = {
    9559: "switch run --p4runtime",
    9560: "job serve --listen",
    9564: "controller run --listen",
}
_SYSTEM = Path("/proc/sys")


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    """The subject of the check."""
    found: str
    """The result."""
    wanted: str
    """The wanted result."""
    remedy: str
    """The remedy; empty if none is needed."""
    state: State
    """`failed` if something that is needed is missing, `note` if something is slower or cannot be used."""


def examine(lanes: int = 256, window: int = 512) -> Iterator[Finding]:
    """Yield findings on this machine, for packets of `lanes` and a window of `window` chunks."""
    for name in _NEEDED:
        yield _package(name, None)
    for name, extra in _OPTIONAL.items():
        yield _package(name, extra)
    yield _cores()
    yield _memory()
    descriptors = _descriptors()
    yield descriptors
    yield _compiled_code()
    if descriptors.state == "ok":
        loopback = _loopback()
        yield loopback
        if loopback.state == "ok":
            yield from _offloads()
        yield _buffers(lanes, window)
    yield from _mtu(lanes)
    yield _namespaces()
    for port, who in _PORTS.items():
        yield _port(port, who)
    yield _clock()
    for name, why in _PROGRAMS.items():
        found = shutil.which(name)
        yield _finding(name, found or "not on PATH", "on PATH", why, found is not None, "note")


def examine_interface(name: str, lanes: int = 256) -> Iterator[Finding]:
    """Yield how frames reach a switch's port on an interface, and its settings. Needs a switch's privilege.

    Opens and closes a port there: packets of peelsum's that arrive meanwhile are lost.
    """
    method = _method(name)
    yield method
    if method.state == "failed":
        return
    mtu, needed = mtu_of(name), needed_mtu(packet_bytes(lanes))
    remedy = f"ip link set {name} mtu {needed}, and then start the switch; or use fewer lanes"
    yield _finding(f"{name}: MTU", str(mtu), f"{needed} or more", remedy, mtu >= needed, "failed")
    about = Path("/sys/class/net", name)
    if not about.is_dir():  # /sys is another network namespace's
        return
    state, speed = (_text(about / one) for one in ("operstate", "speed"))
    known = f", {speed} Mbit/s" if speed.isdecimal() else ""
    remedy = f"ip link set {name} up, and look at the cable and the other end"
    yield _finding(f"{name}: link", f"{state}{known}", "up", remedy, state != "down", "note")
    queues = len(list(about.glob("queues/rx-*")))
    remedy = f"ethtool -L {name} combined 1; a port by AF_XDP has one queue"
    yield _finding(f"{name}: queues", str(queues), "1", remedy, queues == 1, "note")
    interrupts = sorted(path.name for path in about.glob("device/msi_irqs/*"))
    if interrupts:
        cores = sorted({_text(Path("/proc/irq", one, "effective_affinity_list")) for one in interrupts})
        remedy = (
            f"stop irqbalance; echo CORE > /proc/irq/{interrupts[0]}/smp_affinity_list, not the switch's core"
        )
        yield _finding(
            f"{name}: interrupts", f"on {', '.join(cores)}", "one core", remedy, len(cores) == 1, "note"
        )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return "unknown"


def _method(name: str) -> Finding:
    what = f"interface {name}"
    try:
        method, why = best_method(name)
    except OSError as error:
        reason, _, remedy = (error.strerror or "").partition("; ")
        return Finding(what, reason.rpartition(": ")[2], "AF_XDP or AF_PACKET", remedy, "failed")
    if method == "packet" and why == os.strerror(errno.EBUSY):
        why += "; stop the switch, or the program with AF_XDP, that has the interface"
    if method == "packet":
        return Finding(what, "AF_PACKET", "AF_XDP", f"AF_XDP failed: {why}", "note")
    remedy = "its driver has no XDP, so the kernel copies frames once more"
    return _finding(what, f"AF_XDP, {why}", "AF_XDP, native", remedy, why == "native", "note")


def examine_job(
    job: JobDescription | RacksDescription, identity: Identity | None = None
) -> Iterator[Finding]:
    """Yield the answers of a job's switches over P4Runtime. Sends no packet, and changes nothing."""
    for plan in job.plans():
        address, wanted = plan.switch.p4runtime, plan.switch.pipeline_lanes
        switch = f"switch {address}"
        try:
            with open_session(
                *plan.switch.place, plan.switch.tofino, timeout_s=_ANSWER_S, identity=identity
            ) as session:
                seen = None if session.schema is None else read_status(session)
        except ControlError as error:
            reason, _, remedy = str(error).partition("; ")
            yield Finding(switch, reason, "answers P4Runtime", remedy, "failed")
            continue
        yield _finding(switch, "answers P4Runtime", "answers P4Runtime", "", True)
        lanes = 0 if seen is None else seen.lanes
        admit = "run: peelsum job admit, or start the training if `job serve` runs"
        yield _finding(f"{switch}: pipeline", f"{lanes} lanes", f"{wanted} lanes", admit, lanes == wanted)
        if seen is None:
            continue
        admitted = next((one for one in seen.jobs if one.job_id == job.job.id), None)
        what = f"{switch}: job {job.job.id}"
        yield _finding(what, _described(admitted), "admitted", admit, admitted is not None)
        strange = {name.name.lower(): n for name, n in seen.verdicts.items() if n and name.name in _REFUSED}
        said = ", ".join(f"{n} {name}" for name, n in strange.items()) or "none"
        hint = "packets of another job, generation or port: compare ports and admission"
        yield _finding(f"{switch}: refused packets", said, "none", hint, not strange, "note")


def examine_cluster(controllers: Sequence[str], identity: Identity | None = None) -> Iterator[Finding]:
    """Yield the answers of a cluster's controllers and switches, and where desired and actual jobs differ."""
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
        yield _finding(what, f"primary, epoch {listed['epoch']}", "primary or backup", "", True)
    if primary is None:
        remedy = "start `peelsum controller run`, or give the addresses of all controllers"
        yield Finding("cluster", "no primary answers", "a primary", remedy, "failed")
        return
    report = observed(primary, identity)
    for switch in report.switches:
        said = switch.trouble.partition("; ")[0] or switch.state
        remedy = "start the switch, or see what the controller prints"
        good = switch.state == "up" and not switch.trouble
        yield _finding(f"switch {switch.p4runtime}", said, "up", remedy, good)
    for job in report.jobs:
        wanted, found = (
            "not admitted" if one is None else f"generation {one}" for one in (job.desired, job.actual)
        )
        remedy = (
            job.state
            if job.state.startswith("waits")
            else "look again after a poll; the controller repairs it"
        )
        yield _finding(f"job {job.job_id} on {job.p4runtime}", found, wanted, remedy, job.agrees)


_REFUSED = (
    "UNKNOWN_JOB",
    "WRONG_GENERATION",
    "FOREIGN_PORT",
    "WRONG_SENDER",
    "BAD_LENGTH",
    "BAD_VERSION",
    "NO_RETURN_PATH",
)


def _described(job: AdmittedJob | None) -> str:
    if job is None:
        return "not admitted"
    below = job.worker_ports or job.rack_ports
    ports = ", ".join(map(str, below.values()))
    return f"generation {job.generation}, ports {ports}, server at {job.server_port}"


def _finding(
    what: str, found: str, wanted: str, remedy: str, good: bool, otherwise: State = "failed"
) -> Finding:
    return Finding(what, found, wanted, "" if good else remedy, "ok" if good else otherwise)


def _package(name: str, extra: str | None) -> Finding:
    try:
        found = version(name)
    except PackageNotFoundError:
        remedy = install_command(name, extra or "cli")
        return Finding(name, "not installed", "installed", remedy, "note" if extra else "failed")
    return _finding(name, found, "installed", "", True)


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    remedy = "a switch, a server and workers share one core: expect a fraction of the figures in the docs"
    return _finding("processor cores", str(cores), "2 or more", remedy, cores >= 2, "note")


def _memory() -> Finding:
    """Report the memory that this process can have: what is available, or a smaller limit."""
    limits = {"of this machine, available": 1024 * int(_field("/proc/meminfo", "MemAvailable") or 0)}
    group = Path("/sys/fs/cgroup", _text(Path("/proc/self/cgroup")).rpartition("::/")[2])
    for folder in (group, *group.parents):
        if (text := _text(folder / "memory.max")).isdecimal():
            limits[f"limit of {folder}"] = int(text)
    if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        limits["limit of the process, ulimit -v"] = limit
    name, least = min(limits.items(), key=lambda item: item[1])
    remedy = "compiling a switch program takes nearly 1 GB: raise the limit, or end other programs"
    found = f"{least >> 20} MB, {name}"
    return _finding("memory", found, f"{_MEMORY >> 20} MB or more", remedy, least >= _MEMORY)


def _field(path: str, name: str) -> str | None:
    """Return the first word after `name:` in a file of /proc."""
    lines = (line.partition(":") for line in _text(Path(path)).splitlines())
    return next((value.split()[0] for key, _, value in lines if key == name), None)


def _descriptors() -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    remedy = "ulimit -n 4096, or LimitNOFILE= in a unit: every port and connection takes one"
    good = limit >= _DESCRIPTORS or limit == resource.RLIM_INFINITY
    return _finding("file descriptors", str(limit), f"{_DESCRIPTORS} or more", remedy, good)


def _compiled_code() -> Finding:
    """Report the folder for machine code, its free space, and why others before it cannot be used."""
    examined = list(cache.examine_candidates())
    place, problem = examined[-1]
    found = "; ".join(f"{refused}: {why}" for refused, why in examined if why)
    if not problem:
        free = shutil.disk_usage(place).free
        found = "; ".join(filter(None, (f"{place}, {free >> 20} MB free", found)))
    good = len(examined) == 1 and not problem and free >= _CODE
    remedy = f"{cache.REMEDY}, with {_CODE >> 20} MB free; without one, each start compiles for minutes"
    return _finding("folder for compiled code", found, "the user's cache", remedy, good, "note")


def _loopback() -> Finding:
    try:
        with _pair() as (sender, receiver):
            sender.send(b"peelsum")
            found = "works" if _received(receiver)[0] == b"peelsum" else "changes datagrams"
    except OSError as error:
        found = error.strerror or str(error)
    return _finding("loopback", found, "works", "as root: ip link set lo up", found == "works")


def _offloads() -> Iterator[Finding]:
    """Try both offloads between two sockets of loopback."""
    remedy = "needs Linux 5.0 or later; without it, peelsum sends and receives packets one by one"
    for name, attempt in (("UDP_SEGMENT", _segmented), ("UDP_GRO", _merged)):
        try:
            found = attempt()
        except OSError as error:
            found = error.strerror or str(error)
        yield _finding(f"{name} on loopback", found, "works", remedy, found == "works", "note")


def _segmented() -> str:
    with _pair() as (sender, receiver):
        sender.setsockopt(socket.SOL_UDP, _UDP_SEGMENT, _SIZE)
        sender.send(bytes(_SEGMENTS * _SIZE))
        sizes = [len(_received(receiver)[0]) for _ in range(_SEGMENTS)]
        return "works" if sizes == [_SIZE] * _SEGMENTS else f"arrived as {sizes}"


def _merged() -> str:
    with _pair() as (sender, receiver):
        receiver.setsockopt(socket.SOL_UDP, _UDP_GRO, 1)
        sender.setsockopt(socket.SOL_UDP, _UDP_SEGMENT, _SIZE)
        sender.send(bytes(_SEGMENTS * _SIZE))
        data, ancillary = _received(receiver)
        sizes = [struct.unpack("i", value[:4])[0] for _, kind, value in ancillary if kind == _UDP_GRO]
        return "works" if len(data) == _SEGMENTS * _SIZE and sizes == [_SIZE] else "packets are not merged"


@contextmanager
def _pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a UDP socket of loopback, connected to a second one."""
    sender, receiver = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    with sender, receiver:
        receiver.bind(("127.0.0.1", 0))
        sender.connect(receiver.getsockname())
        yield sender, receiver


def _received(receiver: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]]]:
    if not select.select([receiver], [], [], _WAIT_S)[0]:
        raise OSError(f"nothing arrived within {_WAIT_S:g} s")
    data, ancillary, _, _ = receiver.recvmsg(1 << 16, socket.CMSG_SPACE(4))
    return data, ancillary


def _buffers(lanes: int, window: int) -> Finding:
    """Compare the kernel's buffer for a worker's socket with a whole window of packets."""
    with closing(BatchSocket.bind(("127.0.0.1", 0), packet_bytes(lanes))) as opened:
        room = opened.room
    limit = _read("net/core/rmem_max") or "unknown"
    remedy = "as root: sysctl -w net.core.rmem_max=16777216 net.core.wmem_max=16777216; else windows shrink"
    found = f"room for {room} packets (rmem_max {limit})"
    return _finding("socket buffers", found, f"a window of {window}", remedy, room >= window, "note")


def _mtu(lanes: int) -> Iterator[Finding]:
    needed = needed_mtu(packet_bytes(lanes))
    for path in sorted(Path("/sys/class/net").glob("*/mtu")):
        name, mtu = path.parent.name, 0
        with suppress(OSError, ValueError):
            if (path.parent / "operstate").read_text().strip() == "down":
                continue
            mtu = int(path.read_text())
        remedy = f"ip link set {name} mtu {needed}, if peelsum's packets go there; or use fewer lanes"
        yield _finding(f"MTU of {name}", str(mtu), f"{needed} or more", remedy, mtu >= needed, "note")


def _namespaces() -> Finding:
    root, allowed = os.geteuid() == 0, int(_read("user/max_net_namespaces") or 0) > 0
    found = f"{'root' if root else 'not root'}, {'' if allowed else 'not '}allowed"
    remedy = "only --links veth needs it: run as root, with user.max_net_namespaces above 0"
    return _finding("network namespaces", found, "root, allowed", remedy, root and allowed, "note")


def _port(port: int, who: str) -> Finding:
    """Try to listen as the command would."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
        found = "free"
    except OSError as error:
        found = (error.strerror or "").partition(" (")[0].lower()
    remedy = f"fine if that is peelsum; otherwise give `{who}` another port"
    return _finding(f"TCP port {port}", found, "free", remedy, found == "free", "note")


def _clock() -> Finding:
    """Read the date, which certificates need, and time a reading of the clock, which switches make often."""
    reads = 1000
    began = time.perf_counter_ns()
    for _ in range(reads):
        time.monotonic_ns()
    each = (time.perf_counter_ns() - began) / reads
    source = "unknown"
    with suppress(OSError):
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    found = f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {source}, {each:.0f} ns a reading"
    remedy = "choose another clock source (tsc, kvm-clock): this one is slow to read"
    return _finding("clock", found, "under 1,000 ns a reading", remedy, each < 1000, "note")


def _read(name: str) -> str | None:
    try:
        return (_SYSTEM / name).read_text().strip()
    except OSError:
        return None

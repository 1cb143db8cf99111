"""Network namespaces that live as long as a process of ours, and the links between them.

Owns everything that is said to the kernel over netlink (pyroute2). Nothing here has a name in the file
system: what was made goes with the processes that hold it, however they end.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from peelsum.softswitch.ports.interfaces import without_offloads
from peelsum.topology.errors import TopologyError
from peelsum.topology.processes import die_with_parent

#: What a host calls its end of its link, as in Mininet's tutorials.
HOST_INTERFACE = "eth0"
_MTU = 9000
_IPV6_OFF = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
_CLONE_NEWNET = 0x40000000
_NUD_PERMANENT = 0x80
_SCOPE_LINK = 253
_libc = ctypes.CDLL(None, use_errno=True)


def hold_namespace() -> subprocess.Popen[bytes]:
    """A process in a new network namespace that does nothing and dies with this one. Needs root.

    Call it before this process has other threads.
    """

    def enter() -> None:
        die_with_parent()
        if _libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")

    try:
        return subprocess.Popen(
            ["sleep", "infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=enter,
        )
    except subprocess.SubprocessError:
        raise TopologyError("network namespace: refused; run as root") from None


def quieten() -> None:
    """Have this network namespace send nothing of its own: neighbour discovery does unless IPv6 is off."""
    with suppress(OSError):
        _IPV6_OFF.write_text("1")


def inside(pid: int, *command: str) -> list[str]:
    """`command` in the network namespace of process `pid`."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *command]


class Wires:
    """Links in the calling thread's network namespace, the switches', and from there to the hosts'.

    Raises TopologyError where pyroute2 is missing. A context manager.
    """

    def __init__(self) -> None:
        self._netlink = _pyroute2().IPRoute()

    def __enter__(self) -> Wires:
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.close()

    def join(self, name: str, peer: str) -> None:
        """A pair between two interfaces of this namespace, both up."""
        with _explained(f"link {name}"):
            self._netlink.link("add", ifname=name, kind="veth", peer={"ifname": peer})
        self._bring_up(name)
        self._bring_up(peer)

    def plug_in(self, name: str, host_pid: int, mac: str) -> None:
        """A pair between `name` here, up, and HOST_INTERFACE in the namespace of `host_pid`."""
        with _explained(f"link {name}"):
            peer = {"ifname": HOST_INTERFACE, "net_ns_pid": host_pid, "address": mac}
            self._netlink.link("add", ifname=name, kind="veth", peer=peer)
        self._bring_up(name)

    def bridge(self, name: str, *members: str) -> None:
        """A bridge that floods what it has not learned and otherwise stays out of the way."""
        with _explained(f"bridge {name}"):
            self._netlink.link("add", ifname=name, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
            (master,) = self._netlink.link_lookup(ifname=name)
            for member in members:
                (index,) = self._netlink.link_lookup(ifname=member)
                self._netlink.link("set", index=index, master=master)
            self._netlink.link("set", index=master, mtu=_MTU, state="up")

    def shape(self, name: str, *, rate_mbit: float | None, latency_ms: float) -> None:
        """Have what leaves by `name` take time. Raises TopologyError where the kernel cannot."""
        shape(self._netlink, name, rate_mbit=rate_mbit, latency_ms=latency_ms)

    def _bring_up(self, name: str) -> None:
        (index,) = self._netlink.link_lookup(ifname=name)
        self._netlink.link("set", index=index, mtu=_MTU, state="up")
        without_offloads(name)


class HostNetwork:
    """The inside of a host's namespace: its interface, its address, and who is where. A context manager."""

    def __init__(self, pid: int) -> None:
        # pyroute2.s own NetNS forks this process, with its signal handlers, and ends the copy by a signal.
        with _visiting(pid):
            quieten()
            self._netlink = _pyroute2().IPRoute()
            # Bursts are cut up before they leave the host: what a link drops is a packet, not a burst.
            without_offloads(HOST_INTERFACE)
        (self._index,) = self._netlink.link_lookup(ifname=HOST_INTERFACE)

    def __enter__(self) -> HostNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.close()

    def bring_up(self, address: str) -> None:
        """Loopback and HOST_INTERFACE up, the latter with an IPv4 `address` with its prefix."""
        ip, _, prefix = address.partition("/")
        (loopback,) = self._netlink.link_lookup(ifname="lo")
        with _explained(f"address {address}"):
            self._netlink.link("set", index=loopback, state="up")
            self._netlink.addr("add", index=self._index, address=ip, prefixlen=int(prefix))
            self._netlink.link("set", index=self._index, mtu=_MTU, state="up")

    def knows(self, ip: str, mac: str) -> None:
        """Reach `ip` at `mac` over HOST_INTERFACE, without asking around."""
        with _explained(f"neighbour {ip}"):
            self._netlink.neigh("add", dst=ip, lladdr=mac, ifindex=self._index, state=_NUD_PERMANENT)
            self._netlink.route("replace", dst=f"{ip}/32", oif=self._index, scope=_SCOPE_LINK)

    def shape(self, *, rate_mbit: float | None, latency_ms: float) -> None:
        """Have what the host sends take time. Raises TopologyError where the kernel cannot."""
        shape(self._netlink, HOST_INTERFACE, rate_mbit=rate_mbit, latency_ms=latency_ms)


#: What may wait for its turn at a slow link, in milliseconds of its rate, as Mininet's links have it.
_QUEUE = "50ms"
_ROOT, _BELOW = 0x10000, 0x10001


def shape(netlink: Any, name: str, *, rate_mbit: float | None, latency_ms: float) -> None:
    """Rate by a token bucket, latency by netem behind it. Raises TopologyError where the kernel cannot."""
    (index,) = netlink.link_lookup(ifname=name)
    if rate_mbit is not None:
        # A millisecond's worth, and at least three of the largest frames.
        burst = max(3 * (_MTU + 14), int(rate_mbit * 125))
        with _explained(f"link {name}: rate {rate_mbit:g} Mbit/s", "this kernel has no tbf"):
            rate = f"{rate_mbit * 1000:.0f}kbit"
            netlink.tc("add", "tbf", index, handle=_ROOT, rate=rate, burst=burst, latency=_QUEUE)
    if latency_ms:
        with _explained(f"link {name}: latency {latency_ms:g} ms", "this kernel has no netem"):
            below = {} if rate_mbit is None else {"parent": _BELOW}
            netlink.tc("add", "netem", index, handle=2 * _ROOT, delay=int(latency_ms * 1000), **below)


@contextmanager
def _visiting(pid: int) -> Iterator[None]:
    """The calling thread in the network namespace of process `pid`."""
    with Path("/proc/thread-self/ns/net").open() as home, Path(f"/proc/{pid}/ns/net").open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise TopologyError("network namespace: cannot be entered; run as root")


def _pyroute2() -> Any:
    try:
        import pyroute2
    except ImportError:
        raise TopologyError("pyroute2: is not installed; pip install 'peelsum[netns]'") from None
    return pyroute2


@contextmanager
def _explained(what: str, unknown: str = "") -> Iterator[None]:
    """Turn the kernel's refusal into a TopologyError. `unknown`: what ENOENT means here."""
    from pyroute2 import NetlinkError

    try:
        yield
    except NetlinkError as error:
        code, message = error.args[:2]
        reason = f"{unknown} ({message})" if unknown and code == 2 else message
        raise TopologyError(f"{what}: refused by the kernel: {reason}; leave it out") from None

"""Network namespaces that live as long as the process that holds them, and links between them, over netlink.

Namespaces have no names in the file system: the kernel removes them, with their links, when the processes
that hold them end in any way.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from peelsum.extras import missing
from peelsum.softswitch.ports.interfaces import without_offloads
from peelsum.topology.errors import TopologyError
from peelsum.topology.processes import die_with_parent

#: The name of a host's end of its link, as in Mininet's tutorials.
HOST_INTERFACE = "eth0"
_MTU = 9000
_IPV6_OFF = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
_CLONE_NEWNET = 0x40000000
_NUD_PERMANENT = 0x80
_SCOPE_LINK = 253
_libc = ctypes.CDLL(None, use_errno=True)


def hold_namespace() -> subprocess.Popen[bytes]:
    """Start an idle process in a new network namespace, which dies with this process. Needs root.

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
    """Disable IPv6 in this network namespace: it then sends no neighbour discovery."""
    with suppress(OSError):
        _IPV6_OFF.write_text("1")


def inside(pid: int, *command: str) -> list[str]:
    """Return `command` prefixed to run in the network namespace of process `pid`."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *command]


class Wires:
    """Links inside the calling thread's namespace, that of the switches, and from there to the hosts'.

    A context manager. Raises TopologyError if pyroute2 is missing.
    """

    def __init__(self) -> None:
        self._netlink = _pyroute2().IPRoute()

    def __enter__(self) -> Wires:
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.close()

    def join(self, name: str, peer: str) -> None:
        """Make a veth pair between two interfaces of this namespace, both up."""
        with _explained(f"link {name}"):
            self._netlink.link("add", ifname=name, kind="veth", peer={"ifname": peer})
        self._bring_up(name)
        self._bring_up(peer)

    def attach_host(self, name: str, host_pid: int, mac: str) -> None:
        """Make a veth pair between `name` here, up, and HOST_INTERFACE in the namespace of `host_pid`."""
        with _explained(f"link {name}"):
            peer = {"ifname": HOST_INTERFACE, "net_ns_pid": host_pid, "address": mac}
            self._netlink.link("add", ifname=name, kind="veth", peer=peer)
        self._bring_up(name)

    def bridge(self, name: str, *members: str) -> None:
        """Make a bridge of `members`, without spanning tree and multicast snooping."""
        with _explained(f"bridge {name}"):
            self._netlink.link("add", ifname=name, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
            (master,) = self._netlink.link_lookup(ifname=name)
            for member in members:
                (index,) = self._netlink.link_lookup(ifname=member)
                self._netlink.link("set", index=index, master=master)
            self._netlink.link("set", index=master, mtu=_MTU, state="up")

    def shape(self, name: str, *, rate_mbit: float | None, latency_ms: float) -> None:
        """Limit the rate of packets that leave by `name`, and delay them. Raises TopologyError."""
        shape(self._netlink, name, rate_mbit=rate_mbit, latency_ms=latency_ms)

    def _bring_up(self, name: str) -> None:
        (index,) = self._netlink.link_lookup(ifname=name)
        self._netlink.link("set", index=index, mtu=_MTU, state="up")
        without_offloads(name)


class HostNetwork:
    """The inside of a host's namespace: its interface, address and neighbours. A context manager."""

    def __init__(self, pid: int) -> None:
        # pyroute2's own NetNS forks this process, with its signal handlers, and ends the copy by a signal.
        with _visiting(pid):
            quieten()
            self._netlink = _pyroute2().IPRoute()
            # Segment bursts before they leave the host: a link then drops packets, not bursts.
            without_offloads(HOST_INTERFACE)
        (self._index,) = self._netlink.link_lookup(ifname=HOST_INTERFACE)

    def __enter__(self) -> HostNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.close()

    def bring_up(self, address: str) -> None:
        """Bring up loopback, and HOST_INTERFACE with an IPv4 `address` with prefix."""
        ip, _, prefix = address.partition("/")
        (loopback,) = self._netlink.link_lookup(ifname="lo")
        with _explained(f"address {address}"):
            self._netlink.link("set", index=loopback, state="up")
            self._netlink.addr("add", index=self._index, address=ip, prefixlen=int(prefix))
            self._netlink.link("set", index=self._index, mtu=_MTU, state="up")

    def knows(self, ip: str, mac: str) -> None:
        """Add a permanent neighbour entry and a route: `ip` is reached at `mac` without ARP."""
        with _explained(f"neighbour {ip}"):
            self._netlink.neigh("add", dst=ip, lladdr=mac, ifindex=self._index, state=_NUD_PERMANENT)
            self._netlink.route("replace", dst=f"{ip}/32", oif=self._index, scope=_SCOPE_LINK)

    def shape(self, *, rate_mbit: float | None, latency_ms: float) -> None:
        """Limit the rate of the host's packets, and delay them. Raises TopologyError if the kernel cannot."""
        shape(self._netlink, HOST_INTERFACE, rate_mbit=rate_mbit, latency_ms=latency_ms)


#: The queue of a slow link, in milliseconds at its rate, as in Mininet.
_QUEUE = "50ms"
_ROOT, _BELOW = 0x10000, 0x10001


def shape(netlink: Any, name: str, *, rate_mbit: float | None, latency_ms: float) -> None:
    """Add a token bucket for the rate, and netem behind it for latency.

    Raises TopologyError if the kernel cannot.
    """
    (index,) = netlink.link_lookup(ifname=name)
    if rate_mbit is not None:
        # The bytes of a millisecond, but at least three of the largest frames.
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
    """Move the calling thread into the network namespace of process `pid` for the body."""
    with Path("/proc/thread-self/ns/net").open() as home, Path(f"/proc/{pid}/ns/net").open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise TopologyError("network namespace: permission denied; run as root")


def _pyroute2() -> Any:
    try:
        import pyroute2
    except ImportError:
        raise TopologyError(missing("pyroute2", "netns")) from None
    return pyroute2


@contextmanager
def _explained(what: str, unknown: str = "") -> Iterator[None]:
    """Turn the kernel's errors into TopologyError. `unknown`: what ENOENT means here."""
    from pyroute2 import NetlinkError

    try:
        yield
    except NetlinkError as error:
        code, message = error.args[:2]
        reason = f"{unknown} ({message})" if unknown and code == 2 else message
        raise TopologyError(f"{what}: refused by the kernel: {reason}; leave it out") from None

"""Network namespaces that live as long as the process that holds them, links between them, and raw frames.

Namespaces have no names in the file system: the kernel removes them, with their links, when the processes
that hold them end in any way. Links are made by iproute2 in the calling thread's namespace, the switches'.

A lossy link is two veth pairs joined by a bridge, and packets are dropped on entering the bridge. A drop at
the sending host could lose a whole burst or be reported to the sender. A drop at the receiving switch would
be too late: the switch reads packets before nftables sees them.
"""

from __future__ import annotations

import ctypes
import errno
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from peelsum.processes.children import die_with_parent
from peelsum.softswitch.ports.interfaces import without_offloads
from peelsum.topology.errors import TopologyError
from peelsum.wire import Batch

#: The name of a host's end of its link, as in Mininet's tutorials.
HOST_INTERFACE = "eth0"
MTU = 9000
ETH_P_ALL = 3
#: The most seconds until the kernel connects the ends of a wire; on a busy machine it takes 0.1 s.
_CONNECTED_WITHIN_S = 30.0
_PAUSE_S = 0.005
_IPV6_OFF = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
_CLONE_NEWNET = 0x40000000
#: The queue of a slow link, in milliseconds at its rate, as in Mininet.
_QUEUE = "50ms"
#: nftables drops so many packets of this number.
_PARTS = 1_000_000_000
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


def enter_own_namespace() -> None:
    """Move the calling thread, and what it starts, into a new network namespace with `lo` up.

    Raises TopologyError if the `ip` command or the privilege is missing.
    """
    if shutil.which("ip") is None:
        raise TopologyError("ip: not found on PATH; install iproute2")
    if _libc.unshare(_CLONE_NEWNET):
        reason = errno.errorcode.get(ctypes.get_errno(), "unknown error")
        raise TopologyError(f"network namespace: refused ({reason}); run as root")
    run("link lo", "ip", "link", "set", "lo", "up")
    quieten()


def quieten() -> None:
    """Disable IPv6 in this network namespace: it then sends no neighbour discovery."""
    with suppress(OSError):
        _IPV6_OFF.write_text("1")


def inside(pid: int, *command: str) -> list[str]:
    """Return `command` prefixed to run in the network namespace of process `pid`."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *command]


def run(what: str, *command: str, given: str = "") -> str:
    """Run a program with `given` as its input; return what it prints. Raises TopologyError naming `what`."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise TopologyError(f"{what}: {command[0]}: not found on PATH; install it, or leave it out") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[0]
        raise TopologyError(f"{what}: refused: {reason.rstrip('.')}; leave it out")
    return done.stdout


def bring_up(name: str) -> None:
    """Bring up an interface for frames of peelsum's, without offloads."""
    run(f"link {name}", "ip", "link", "set", name, "mtu", str(MTU), "up")
    without_offloads(name)


def add_wire(switch_end: str, host_end: str) -> None:
    """Make a veth pair that carries frames, without offloads: BMv2 loses packets that rely on them.

    The kernel connects the ends a little after it sets them up, and drops frames until then. Raises
    TopologyError if it does not connect them in 30 s, or if `ip` fails.
    """
    run(f"link {switch_end}", "ip", "link", "add", switch_end, "type", "veth", "peer", "name", host_end)
    for name in (switch_end, host_end):
        bring_up(name)
    wait_until_up(switch_end, host_end)


def wait_until_up(*names: str) -> None:
    """Wait until the kernel has connected the ends of a wire. Raises TopologyError after 30 s."""
    ends_at = time.monotonic() + _CONNECTED_WITHIN_S
    while not all(" state UP " in run(f"link {name}", "ip", "link", "show", name) for name in names):
        if time.monotonic() > ends_at:
            raise TopologyError(f"{' and '.join(names)}: the kernel does not connect them; try again")
        time.sleep(_PAUSE_S)


def attach_host(name: str, host_pid: int, mac: str) -> None:
    """Make a veth pair between `name` here, up, and HOST_INTERFACE in the namespace of `host_pid`."""
    peer = ["type", "veth", "peer", "name", HOST_INTERFACE, "address", mac, "netns", str(host_pid)]
    run(f"link {name}", "ip", "link", "add", name, *peer)
    bring_up(name)


def bridge(name: str, *members: str) -> None:
    """Make a bridge of `members`, without spanning tree and multicast snooping."""
    what = f"bridge {name}"
    run(what, "ip", "link", "add", name, "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
    for member in members:
        run(what, "ip", "link", "set", member, "master", name)
    run(what, "ip", "link", "set", name, "mtu", str(MTU), "up")


def configure_host(pid: int, address: str, neighbours: Mapping[str, str]) -> None:
    """Bring up loopback, and HOST_INTERFACE with an IPv4 `address` with prefix, in the namespace of `pid`.

    neighbours: MAC addresses by IPv4 address, each reached by a route of its own and without ARP.
    """
    with _visiting(pid):
        quieten()
        # Segment bursts before they leave the host: a link then drops packets, not bursts.
        without_offloads(HOST_INTERFACE)
    end = f"dev {HOST_INTERFACE}"
    lines = ["link set lo up", f"address add {address} {end}", f"link set {HOST_INTERFACE} mtu {MTU} up"]
    for ip, mac in neighbours.items():
        lines.append(f"neighbour add {ip} lladdr {mac} {end} nud permanent")
        lines.append(f"route replace {ip}/32 {end} scope link")
    run(f"address {address}", *inside(pid, "ip", "-batch", "-"), given="\n".join(lines))


def shape(name: str, *, rate_mbit: float | None, latency_ms: float, pid: int | None = None) -> None:
    """Limit the rate of packets that leave by `name`, and delay them. Raises TopologyError if that fails.

    pid: a process in whose namespace the interface is; by default in this one.
    """
    add = ["tc", "qdisc", "add", "dev", name]
    add = add if pid is None else inside(pid, *add)
    if rate_mbit is not None:
        # The bytes of a millisecond, but at least three of the largest frames.
        burst = max(3 * (MTU + 14), int(rate_mbit * 125))
        bucket = ("rate", f"{rate_mbit * 1000:.0f}kbit", "burst", str(burst), "latency", _QUEUE)
        run(f"link {name}: rate {rate_mbit:g} Mbit/s", *add, "root", "handle", "1:", "tbf", *bucket)
    if latency_ms:
        place = ("root",) if rate_mbit is None else ("parent", "1:1")
        delay = f"{int(latency_ms * 1000)}us"
        run(f"link {name}: latency {latency_ms:g} ms", *add, *place, "handle", "2:", "netem", "delay", delay)


def lose(share: float, *interfaces: str) -> None:
    """Drop a `share` (0 to 1) of the packets that enter each interface of this namespace.

    Raises TopologyError, with the reason, if nftables is missing or fails.
    """
    chains = "\n".join(
        f'chain c{number} {{ type filter hook ingress device "{name}" priority 0; policy accept;\n'
        f"numgen random mod {_PARTS} < {max(1, round(share * _PARTS))} drop\n}}"
        for number, name in enumerate(interfaces)
    )
    rules = f"table netdev peelsum-{interfaces[0]} {{\n{chains}\n}}\n"
    run(f"loss {share:g}", "nft", "-f", "-", given=rules)


class RawInterface:
    """Raw frames on one interface (AF_PACKET), non-blocking."""

    def __init__(self, name: str, *, receives: bool = True) -> None:
        """receives: False if nothing reads from it; the kernel then queues no frames."""
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._sock.bind((name, ETH_P_ALL if receives else 0))
        self._sock.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor, for select."""
        return self._sock.fileno()

    def close(self) -> None:
        """Release the socket."""
        self._sock.close()

    def send(self, frames: Batch) -> int:
        """Send whole frames, uint8[n, length]; return how many the kernel accepted."""
        for sent, frame in enumerate(frames):
            try:
                self._sock.send(frame.data)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    raise
                return sent
        return len(frames)

    def receive_into(self, rows: Batch) -> int:
        """Fill `rows` (uint8[n, length]) with waiting frames; return how many. Drops other lengths."""
        count = 0
        while count < len(rows):
            try:
                length = self._sock.recv_into(rows[count].data)
            except BlockingIOError:
                break
            count += length == rows.shape[1]
        return count


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

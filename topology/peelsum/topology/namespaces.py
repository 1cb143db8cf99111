"""Network namespaces, and the links between them.

Namespaces have no names in the file system. So the kernel removes them and their links when the processes in
them end, for whatever reason. Links are created by iproute2 in the calling thread's namespace, which is the
switches'.

A lossy link consists of two veth pairs and a bridge between them, which drops packets at its ingress. If the
sending host dropped them, it could lose a whole burst, or report the loss to the sender. The receiving switch
cannot drop them, because it reads packets before nftables does.
"""

from __future__ import annotations

import ctypes
import errno
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from peelsum.processes.children import die_with_parent
from peelsum.softswitch.ports.interfaces import disable_offloads
from peelsum.topology.errors import TopologyError

#: The name of a host's interface, as in the P4 tutorials.
HOST_INTERFACE = "eth0"
MTU = 9000
#: The time limit until the kernel has connected the ends of a veth pair. A busy machine takes 0.1 s.
_LINK_UP_TIMEOUT_S = 30.0
_POLL_S = 0.005
_IPV6_OFF = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
_CLONE_NEWNET = 0x40000000
#: The queue of a link with a rate: the time in which it is sent, as in Mininet.
_QUEUE = "50ms"
#: The loss is a fraction with this denominator, as nftables has only integers.
_LOSS_DENOMINATOR = 1_000_000_000
_libc = ctypes.CDLL(None, use_errno=True)


def hold_namespace(stack: ExitStack) -> int:
    """Start an idle process in a new network namespace; return its id. It is killed when `stack` ends.

    The kernel kills it when this process ends. Call this before this process has other threads. Raises
    TopologyError without root privileges.
    """

    def enter() -> None:
        die_with_parent()
        if _libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")

    try:
        holder = subprocess.Popen(
            ["sleep", "infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=enter,
        )
    except subprocess.SubprocessError:
        raise TopologyError("network namespace: refused; run as root") from None
    stack.callback(holder.wait)
    stack.callback(holder.kill)
    return holder.pid


def enter_own_namespace() -> None:
    """Move the calling thread and its future children into a new network namespace, and bring up `lo`.

    Raises TopologyError if the command `ip` or root privileges are missing.
    """
    if shutil.which("ip") is None:
        raise TopologyError("ip: not found on PATH; install iproute2")
    if _libc.unshare(_CLONE_NEWNET):
        reason = errno.errorcode.get(ctypes.get_errno(), "unknown error")
        raise TopologyError(f"network namespace: refused ({reason}); run as root")
    run("link lo", "ip", "link", "set", "lo", "up")
    disable_ipv6()


def disable_ipv6() -> None:
    """Disable IPv6 in this network namespace, so that the kernel sends no neighbour discovery."""
    with suppress(OSError):
        _IPV6_OFF.write_text("1")


def inside(pid: int, *command: str) -> list[str]:
    """Return the command line that runs a command in the network namespace of process `pid`."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *command]


def run(what: str, *command: str, stdin: str = "", remedy: str = "leave it out") -> str:
    """Run a command with `stdin` as its input; return its output.

    what: the property of the network that needs it. TopologyError has `what`, the command's reason and the
    remedy.
    """
    try:
        result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise TopologyError(f"{what}: {command[0]}: not found on PATH; install it, or leave it out") from None
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or [f"status {result.returncode}"])[0]
        raise TopologyError(f"{what}: refused: {reason.rstrip('.')}; {remedy}")
    return result.stdout


def bring_up(name: str) -> None:
    """Bring up an interface with the MTU for peelsum's frames, and without offloads."""
    run(f"link {name}", "ip", "link", "set", name, "mtu", str(MTU), "up")
    disable_offloads(name)


def add_wire(switch_end: str, host_end: str) -> None:
    """Create a veth pair and wait until it forwards frames. Raises TopologyError.

    The pair has no offloads, because BMv2 loses packets that rely on them. The kernel connects the ends some
    time after it has created them, and drops frames until then.
    """
    run(f"link {switch_end}", "ip", "link", "add", switch_end, "type", "veth", "peer", "name", host_end)
    for name in (switch_end, host_end):
        bring_up(name)
    wait_until_up(switch_end, host_end)


def wait_until_up(*names: str) -> None:
    """Wait until the kernel has connected these interfaces. Raises TopologyError after 30 s."""
    deadline = time.monotonic() + _LINK_UP_TIMEOUT_S
    while not all(" state UP " in run(f"link {name}", "ip", "link", "show", name) for name in names):
        if time.monotonic() > deadline:
            raise TopologyError(f"{' and '.join(names)}: the kernel does not connect them; try again")
        time.sleep(_POLL_S)


def attach_host(name: str, host_pid: int, mac: str) -> None:
    """Create a veth pair from the interface `name` here to HOST_INTERFACE in the namespace of `host_pid`.

    mac: the address of HOST_INTERFACE. Only the end here is brought up.
    """
    peer = ["type", "veth", "peer", "name", HOST_INTERFACE, "address", mac, "netns", str(host_pid)]
    run(f"link {name}", "ip", "link", "add", name, *peer)
    bring_up(name)


def bridge(name: str, *members: str) -> None:
    """Create a bridge of the interfaces `members`, without spanning tree and multicast snooping."""
    what = f"bridge {name}"
    run(what, "ip", "link", "add", name, "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
    for member in members:
        run(what, "ip", "link", "set", member, "master", name)
    run(what, "ip", "link", "set", name, "mtu", str(MTU), "up")


def configure_host(pid: int, address: str, neighbours: Mapping[str, str]) -> None:
    """Configure the network of a host, in the namespace of `pid`: loopback, HOST_INTERFACE and neighbours.

    address: the IPv4 address of HOST_INTERFACE, with prefix length. neighbours: the MAC address of each other
    IPv4 address, for permanent neighbour entries and routes.
    """
    with Path("/proc/thread-self/ns/net").open() as home, Path(f"/proc/{pid}/ns/net").open() as there:
        # The calling thread moves there and back.
        if _libc.setns(there.fileno(), _CLONE_NEWNET):
            raise TopologyError("network namespace: permission denied; run as root")
        try:
            disable_ipv6()
            # Bursts are segmented before they leave the host, so that a lossy link drops single packets.
            disable_offloads(HOST_INTERFACE)
        finally:
            if _libc.setns(home.fileno(), _CLONE_NEWNET):
                raise TopologyError("network namespace: permission denied; run as root")
    end = f"dev {HOST_INTERFACE}"
    lines = ["link set lo up", f"address add {address} {end}", f"link set {HOST_INTERFACE} mtu {MTU} up"]
    for ip, mac in neighbours.items():
        lines.append(f"neighbour add {ip} lladdr {mac} {end} nud permanent")
        lines.append(f"route replace {ip}/32 {end} scope link")
    run(f"address {address}", *inside(pid, "ip", "-batch", "-"), stdin="\n".join(lines))


def shape(name: str, *, rate_mbit: float | None, latency_ms: float, pid: int | None = None) -> None:
    """Limit the rate of the packets that leave by the interface `name`, and delay them.

    pid: a process in the interface's namespace, by default this process. Raises TopologyError.
    """
    add = ["tc", "qdisc", "add", "dev", name]
    add = add if pid is None else inside(pid, *add)
    if rate_mbit is not None:
        # The bytes of one millisecond, but at least three frames of the largest size.
        burst = max(3 * (MTU + 14), int(rate_mbit * 125))
        bucket = ("rate", f"{rate_mbit * 1000:.0f}kbit", "burst", str(burst), "latency", _QUEUE)
        run(f"link {name}: rate {rate_mbit:g} Mbit/s", *add, "root", "handle", "1:", "tbf", *bucket)
    if latency_ms:
        place = ("root",) if rate_mbit is None else ("parent", "1:1")
        delay = f"{int(latency_ms * 1000)}us"
        what = f"link {name}: latency {latency_ms:g} ms"
        remedy = "load the kernel's module sch_netem, or use --links udp"
        run(what, *add, *place, "handle", "2:", "netem", "delay", delay, remedy=remedy)


def drop_packets(share: float, *interfaces: str) -> None:
    """Drop a share, from 0 to 1, of the packets that arrive at each of these interfaces.

    Raises TopologyError if nftables is missing or fails.
    """
    chains = "\n".join(
        f'chain c{number} {{ type filter hook ingress device "{name}" priority 0; policy accept;\n'
        f"numgen random mod {_LOSS_DENOMINATOR} < {max(1, round(share * _LOSS_DENOMINATOR))} drop\n}}"
        for number, name in enumerate(interfaces)
    )
    rules = f"table netdev peelsum-{interfaces[0]} {{\n{chains}\n}}\n"
    run(f"loss {share:g}", "nft", "-f", "-", stdin=rules)

"""A network namespace of this process's own with virtual Ethernet pairs, and raw frames on its interfaces.

The kernel removes the namespace with its last process.
"""

from __future__ import annotations

import ctypes
import errno
import shutil
import socket
import time

from peelsum.topology.errors import TopologyError
from peelsum.topology.namespaces import bring_up, quieten, run
from peelsum.wire import Batch

_CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3
#: The most seconds until the kernel connects the ends of a wire; on a busy machine it takes 0.1 s.
_CONNECTED_WITHIN_S = 30.0
_PAUSE_S = 0.005


def enter_own_namespace() -> None:
    """Move the calling thread, and what it starts, into a new network namespace with `lo` up.

    Raises TopologyError if the `ip` command or the privilege is missing.
    """
    if shutil.which("ip") is None:
        raise TopologyError("ip: not found on PATH; install iproute2")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        reason = errno.errorcode.get(ctypes.get_errno(), "unknown error")
        raise TopologyError(f"network namespace: refused ({reason}); run as root")
    run("link lo", "ip", "link", "set", "lo", "up")
    quieten()


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

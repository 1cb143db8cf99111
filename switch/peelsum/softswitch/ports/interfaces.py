"""Switch ports on network interfaces: by AF_XDP if the kernel and the interface support it, else AF_PACKET.

They need Linux and privileges.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import re
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.ports.ring_kernels import (
    InterfaceColumn,
    InterfaceRings,
    new_interface_rings,
    receive,
    send,
)
from peelsum.softswitch.ports.xdp import CHUNK, RING, XdpSocket
from peelsum.softswitch.runtime.frames import Frames, frames_per_batch
from peelsum.switch_settings import Method
from peelsum.wire import CPU_PORT, FRAME_HEADER_BYTES, HEADER_BYTES
from peelsum.wire.mtu import ETHERNET_HEADER_BYTES, interface_mtu_error, is_running, mtu_of

_logger = logging.getLogger("peelsum")
_ETH_P_ALL = 3
# linux/if_packet.h; the `socket` module does not name them.
_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION, _PACKET_IGNORE_OUTGOING = 5, 6, 10, 23
_TPACKET_V2, _BLOCK_BYTES = 1, 1 << 16
#: AF_PACKET's ring: where a frame begins in its slot; then (bytes of a slot, slots) for usual and for jumbo
#: frames.
_FRAME_OFFSET, _SMALL_SLOTS, _LARGE_SLOTS = 66, (2048, 4096), (16_384, 1024)
_SO_SNDBUFFORCE = 32
_BUFFER_BYTES = 8 << 20
_SIOCETHTOOL = 0x8946
#: ethtool commands that set: transmit checksum, TCP segmentation, generic segmentation, generic receive.
_OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)
_NAME_BYTES = 15
#: The least bytes for a frame: Ethernet's usual maximum.
_ETHERNET_BYTES = 1514
#: A rate in the output of `tc`, and its units in Mbit/s.
_TC_RATE = re.compile(r"\brate (\d+(?:\.\d+)?)([KMG]?)bit")
_MBITS = {"": 1e-6, "K": 1e-3, "M": 1.0, "G": 1e3}
#: Seconds between two checks of the interfaces' MTUs.
_MTU_CHECK_INTERVAL_S = 1.0


@dataclass(frozen=True)
class InterfaceCounts:
    """Counts of one port's frames since it was opened."""

    received: int = 0
    """Frames passed to the pipeline."""
    sent: int = 0
    """Frames sent on the interface."""
    full: int = 0
    """Frames dropped because the interface's queue was full."""
    overrun: int = 0
    """Frames that the kernel dropped because the pipeline was too slow."""
    long: int = 0
    """Frames dropped because they were longer than the pipeline, or the interface, accepts."""
    down: int = 0
    """Frames dropped because the interface was down or removed."""


class InterfacePort:
    """One switch port on the interface `name`. Raises OSError naming it if it cannot be opened.

    method: `xdp` or `packet`. why: for people, AF_XDP's mode, or the reason why it is not used. longest:
    bytes of the longest frame that can arrive, which depends on the MTU when the port was opened.
    """

    def __init__(self, number: int, name: str, method: Method, wires: InterfaceRings, row: int) -> None:
        """row: the port's row in `wires`."""
        self.number, self.name = number, name
        self._counts, self._overrun = wires.counts[row], 0
        self._state, self._free = wires.state[row], wires.free[row]
        self.xdp: XdpSocket | None = None
        self._slots: NDArray[np.uint8] | None = None
        try:
            disable_offloads(name)
            self.method, self.why = self._open(name, method)
        except OSError as error:
            raise OSError(error.errno, _error_text(f"{number}@{name}", error)) from error
        self._state[InterfaceColumn.DESCRIPTOR] = self.socket.fileno()
        self._mtu = 0

    @property
    def counts(self) -> InterfaceCounts:
        """A copy of the counts so far."""
        received, sent, full, too_long, link_down = (int(count) for count in self._counts)
        with suppress(OSError):
            if self.xdp is not None:
                self._overrun, refused = self.xdp.dropped()
                too_long += refused
            else:  # reading resets the kernel's count
                statistics = self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
                self._overrun += struct.unpack("=II", statistics)[1]
        return InterfaceCounts(received, sent, full, self._overrun, too_long, link_down)

    def check_mtu(self, packet_bytes: int, *, always: bool = False) -> None:
        """Log a warning if packets of `packet_bytes` are too long for the interface.

        Without `always`, check only if the MTU has changed since the last check.
        """
        with suppress(OSError):  # the interface is gone
            if self._mtu == (mtu := mtu_of(self.name)) and not always:
                return
            self._mtu = mtu
            problem = interface_mtu_error(self.name, packet_bytes)
            if problem is None and self.longest < FRAME_HEADER_BYTES + packet_bytes:
                problem = (
                    f"interface {self.name}: its MTU was smaller when the switch started, which receives no "
                    f"frames of more than {self.longest} bytes; start it again"
                )
            if problem is not None:
                _logger.warning("port %d: %s", self.number, problem)

    def close(self) -> None:
        """Close the socket and release its ring, which would keep it open."""
        if self.xdp is not None:
            self.xdp.close()
        self._slots = None
        self.socket.close()

    def _open(self, name: str, method: Method) -> tuple[Literal["xdp", "packet"], str]:
        """Open a socket by the method; return the method and a text about it."""
        if not 0 < len(name.encode()) <= _NAME_BYTES:
            raise OSError(errno.ENODEV, "not an interface name")
        state, column, reason = self._state, InterfaceColumn, "as asked"
        if method != "packet":
            try:
                self.xdp = xdp = XdpSocket(name)
            except OSError as error:
                if method == "xdp":
                    raise
                reason = f"as AF_XDP failed: {error.strerror}"
            else:
                self.socket, self.longest = xdp.socket, xdp.longest
                state[[column.XDP, column.MEMORY, column.FILLED]] = 1, xdp.memory, RING
                state[column.RX_PRODUCER : column.RX + 1] = xdp.rx
                state[[column.FILL_PRODUCER, column.FILL]] = xdp.fill.producer, xdp.fill.entries
                state[column.TX_PRODUCER : column.TX + 1] = xdp.tx
                state[column.COMPLETION_PRODUCER : column.DONE + 1] = xdp.completion
                state[column.FREE_CHUNKS] = RING
                self._free[:] = CHUNK * np.arange(RING, 2 * RING)
                return "xdp", xdp.mode
        self.socket, size, number = _raw_socket(name)
        self._slots = np.frombuffer(mmap.mmap(self.socket.fileno(), size * number), np.uint8)
        state[[column.MEMORY, column.SLOT, column.SLOTS]] = self._slots.ctypes.data, size, number
        self.longest = size - _FRAME_OFFSET
        return "packet", reason


class InterfacePorts:
    """All ports of a switch, on interfaces. `received` and `wires` are the memory of compiled functions."""

    def __init__(
        self,
        interfaces: Mapping[int, str],
        *,
        batch: int = 1024,
        method: Method = "auto",
        cpu_port: int = CPU_PORT,
    ) -> None:
        """interfaces: names by switch port. batch: most frames that `receive` returns.

        cpu_port: frames to it are for the controller.

        Raises OSError naming the port and the interface that cannot be used.
        """
        self.batch = self._most_frames = batch
        self._packet_bytes, self._next_mtu_check_s = 0, 0.0
        self.cpu_port = cpu_port
        self.wires = new_interface_rings(list(interfaces), batch, cpu_port)
        #: By switch port number.
        self.ports: dict[int, InterfacePort] = {}
        try:
            for row, (number, name) in enumerate(interfaces.items()):
                self.ports[number] = InterfacePort(number, name, method, self.wires, row)
        except OSError:
            self.close()
            raise
        self._allocate_buffers(0)

    @property
    def methods(self) -> dict[int, str]:
        """By switch port: how frames reach it, for people."""
        families = {"xdp": "AF_XDP", "packet": "AF_PACKET"}
        return {number: f"{families[port.method]}, {port.why}" for number, port in self.ports.items()}

    @property
    def unsent_frames(self) -> dict[str, int]:
        """Frames from the program that no port sent, by reason: the egress port does not exist."""
        return {"unknown_port": int(self.wires.dropped[0])}

    def is_up(self, port: int) -> bool:
        """Return whether a port exists and its interface has a link, and so can send frames."""
        with suppress(OSError):  # the interface is gone
            return port in self.ports and is_running(self.ports[port].name)
        return False

    def resize(self, packet_bytes: int) -> None:
        """Accept frames with packets of `packet_bytes` from now on, for a new pipeline.

        Logs a warning for each interface whose MTU is too small for them.
        Ports by AF_XDP take only the frames of peelsum's packets, and the kernel gets the others; with a
        pipeline without lanes, they take all frames. Ports by AF_PACKET get copies of all frames.
        """
        self._allocate_buffers(packet_bytes)
        self._packet_bytes = packet_bytes
        for port in self.ports.values():
            port.check_mtu(packet_bytes, always=True)
            if port.xdp is not None:
                with suppress(OSError):  # the interface is gone
                    port.xdp.take(every_frame=packet_bytes <= HEADER_BYTES)

    def check_mtus(self) -> None:
        """Check, at most once a second, whether an interface's MTU has changed."""
        if (now := time.monotonic()) >= self._next_mtu_check_s:
            self._next_mtu_check_s = now + _MTU_CHECK_INTERVAL_S
            for port in self.ports.values():
                port.check_mtu(self._packet_bytes)

    def _allocate_buffers(self, packet_bytes: int) -> None:
        """Allocate the arrays for received frames with packets of `packet_bytes`.

        With a pipeline without lanes, they have room for the longest frame that a port can receive.
        """
        longest = max(FRAME_HEADER_BYTES + packet_bytes, _ETHERNET_BYTES)
        if packet_bytes <= HEADER_BYTES:
            longest = max([longest, *(port.longest for port in self.ports.values())])
        stride = -(-longest // 64) * 64
        self.batch = frames_per_batch(self._most_frames, stride)
        length, port = np.zeros((2, self.batch), np.int32)
        self.received = Frames(np.zeros((self.batch, stride), np.uint8), length, port)

    def receive(self, ready: Sequence[int]) -> Frames:
        """Return frames that arrived on the ports `ready`, in order per port and in fair shares.

        The result may be empty and is valid until the next call. Other frames wait in the kernel.
        """
        self.check_mtus()
        frames, rows = self.received, self.wires.rows[list(ready)]
        share = max(1, self.batch // max(1, len(ready)))
        count = receive(self.wires, rows, share, frames.data, frames.length, frames.port)
        return Frames(frames.data[:count], frames.length[:count], frames.port[:count])

    def send(self, frames: Frames) -> None:
        """Send the frames on the interfaces of their ports, in order per port."""
        send(self.wires, frames.data, frames.length, frames.port)

    def close(self) -> None:
        """Close every port."""
        for port in self.ports.values():
            port.close()


def best_port_method(name: str) -> tuple[Method, str]:
    """Return which method a port on the interface `name` would use, and AF_XDP's mode or why it fails.

    The sockets are opened and closed again. Raises OSError, naming the interface, if no method works.
    """
    try:
        xdp = XdpSocket(name)
    except OSError as error:
        try:
            _raw_socket(name)[0].close()
        except OSError as problem:
            raise OSError(problem.errno, _error_text(name, problem)) from problem
        return "packet", error.strerror or ""
    xdp.close()
    return "xdp", xdp.mode


def shaped_rate(name: str) -> float | None:
    """Return the rate in Mbit/s to which `tc` (htb or tbf) limits an interface; None without a limit."""
    tc = shutil.which("tc")
    rates = []
    for kind in ("class", "qdisc") if tc else ():
        command = [str(tc), kind, "show", "dev", name]
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        rates += [float(number) * _MBITS[unit] for number, unit in _TC_RATE.findall(text)]
    return max(rates, default=None)


def disable_offloads(name: str) -> None:
    """Turn off an interface's offloads, as far as it has them and permits that.

    With offloads, the kernel delivers merged frames that exceed the MTU, and frames without checksums.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("=II", command, 0))
            request = struct.pack("16sP8x", name.encode(), ctypes.addressof(value))
            with suppress(OSError):
                fcntl.ioctl(control, _SIOCETHTOOL, request)


def _raw_socket(name: str) -> tuple[socket.socket, int, int]:
    """Return a socket of AF_PACKET with a ring, the bytes of a slot, and the number of slots."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        sock.setblocking(False)
        sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
        sock.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
        longest = mtu_of(name) + ETHERNET_HEADER_BYTES
        size, number = _SMALL_SLOTS if _FRAME_OFFSET + longest <= _SMALL_SLOTS[0] else _LARGE_SLOTS
        ring = struct.pack("=IIII", _BLOCK_BYTES, size * number // _BLOCK_BYTES, size, number)
        sock.setsockopt(_SOL_PACKET, _PACKET_RX_RING, ring)
        sock.bind((name, _ETH_P_ALL))
    except OSError:
        sock.close()
        raise
    return sock, size, number


def _error_text(subject: str, error: OSError) -> str:
    """Return the text of an error about an interface, with a remedy."""
    match error.errno:
        case errno.EPERM | errno.EACCES:
            remedy = "raw sockets need root, or the capabilities CAP_NET_RAW and CAP_NET_ADMIN"
        case errno.ENODEV:
            # /sys may still show another network namespace.
            names = {path.name for path in Path("/proc/sys/net/ipv4/neigh").iterdir()} - {"default"}
            remedy = f"use one of {', '.join(sorted(names))}"
        case _:
            remedy = "choose another interface"
    return f"interface {subject}: {error.strerror}; {remedy}"

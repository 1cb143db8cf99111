"""Switch ports on network interfaces, by AF_XDP where kernel and interface have it, else by AF_PACKET.

Linux only, and privileged.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.ports.ring_kernels import (
    Column,
    Wires,
    new_wires,
    receive,
    send,
)
from peelsum.softswitch.ports.xdp import CHUNK, RING, XdpSocket
from peelsum.softswitch.runtime.frames import Frames, frames_of_a_turn
from peelsum.switch_settings import Method
from peelsum.wire import FRAME_HEADER_BYTES, HEADER_BYTES
from peelsum.wire.mtu import ETHERNET_HEADER_BYTES, mtu_of, too_long_for

_log = logging.getLogger("peelsum")
_ETH_P_ALL = 3
# linux/if_packet.h; the `socket` module does not name them.
_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION, _PACKET_IGNORE_OUTGOING = 5, 6, 10, 23
_SECOND_VERSION, _BLOCK_BYTES = 1, 1 << 16
#: AF_PACKET's ring: where a frame begins in its slot; for an MTU of 1,500 or so, and for a longer one, the
#: bytes of a slot and their number.
_SLOT_BEGIN, _SHORT, _LONG = 66, (2048, 4096), (16_384, 1024)
_SO_SNDBUFFORCE = 32
_BUFFER_BYTES = 8 << 20
_SIOCETHTOOL = 0x8946
#: ethtool commands that set: transmit checksum, TCP segmentation, generic segmentation, generic receive.
_OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)
_NAME_BYTES = 15
#: Least room for a frame: Ethernet's usual maximum.
_ETHERNET_BYTES = 1514
#: Least seconds between two looks at the MTUs.
_LOOK_EVERY_S = 1.0


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
    tagged: int = 0
    """Frames dropped because they had a VLAN tag that the interface took off."""


class InterfacePort:
    """One switch port on the interface `name`. Raises OSError naming it if it cannot be opened.

    method: `xdp` or `packet`. why: in words, why it is not `xdp`, or AF_XDP's mode. longest: bytes of the
    longest frame that can arrive, by the MTU at the opening.
    """

    def __init__(self, number: int, name: str, method: Method, wires: Wires, row: int) -> None:
        """wires: has the port's row `row`."""
        self.number, self.name = number, name
        self._counts, self._overrun = wires.counts[row], 0
        self._state, self._free = wires.state[row], wires.free[row]
        self.xdp: XdpSocket | None = None
        self._slots: NDArray[np.uint8] | None = None
        try:
            without_offloads(name)
            self.method, self.why = self._open(name, method)
        except OSError as error:
            raise OSError(error.errno, _error_text(f"{number}@{name}", error)) from error
        self._state[Column.DESCRIPTOR] = self.socket.fileno()
        self._mtu = 0

    @property
    def counts(self) -> InterfaceCounts:
        """A copy of the counts so far."""
        received, sent, full, too_long, down, tagged = (int(count) for count in self._counts)
        with suppress(OSError):
            if self.xdp is not None:
                self._overrun, refused = self.xdp.dropped()
                too_long += refused
            else:  # reading resets the kernel's count
                told = self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
                self._overrun += struct.unpack("=II", told)[1]
        return InterfaceCounts(received, sent, full, self._overrun, too_long, down, tagged)

    def look_at_mtu(self, packet_bytes: int, *, again: bool = False) -> None:
        """Log a warning if packets of `packet_bytes` do not pass here.

        Without `again`, only if the MTU has changed since the last look.
        """
        with suppress(OSError):  # the interface is gone
            if self._mtu == (mtu := mtu_of(self.name)) and not again:
                return
            self._mtu = mtu
            why = too_long_for(self.name, packet_bytes)
            if why is None and self.longest < FRAME_HEADER_BYTES + packet_bytes:
                why = (
                    f"interface {self.name}: its MTU was smaller when the switch started, which receives no "
                    f"frames of more than {self.longest} bytes; start it again"
                )
            if why is not None:
                _log.warning("port %d: %s", self.number, why)

    def close(self) -> None:
        """Close the socket, and its ring with it: that keeps it open."""
        if self.xdp is not None:
            self.xdp.close()
        self._slots = None
        self.socket.close()

    def _open(self, name: str, method: Method) -> tuple[Literal["xdp", "packet"], str]:
        if not 0 < len(name.encode()) <= _NAME_BYTES:
            raise OSError(errno.ENODEV, "not an interface name")
        why = "as asked"
        if method != "packet":
            try:
                self._use_xdp(XdpSocket(name))
            except OSError as error:
                if method == "xdp":
                    raise
                why = f"as AF_XDP failed: {error.strerror}"
            else:
                return "xdp", self.xdp.mode if self.xdp else ""
        self.socket, size, number = _raw_socket(name)
        slots = np.frombuffer(mmap.mmap(self.socket.fileno(), size * number), np.uint8)
        self._slots, self._state[Column.MEMORY] = slots, slots.ctypes.data
        self._state[[Column.SLOT, Column.SLOTS]] = size, number
        self.longest = size - _SLOT_BEGIN
        return "packet", why

    def _use_xdp(self, xdp: XdpSocket) -> None:
        self.xdp, self.socket, self.longest = xdp, xdp.socket, xdp.longest
        state = self._state
        state[Column.XDP], state[Column.MEMORY], state[Column.FILLED] = 1, xdp.memory, RING
        state[Column.RX_PRODUCER : Column.RX + 1] = xdp.rx
        state[[Column.FILL_PRODUCER, Column.FILL]] = xdp.fill.producer, xdp.fill.entries
        state[Column.TX_PRODUCER : Column.TX + 1] = xdp.tx
        state[Column.DONE_PRODUCER : Column.DONE + 1] = xdp.done
        state[Column.FREE] = RING
        self._free[:] = CHUNK * np.arange(RING, 2 * RING)


class InterfacePorts:
    """All ports of a switch, on interfaces. `received` and `wires` are the memory of the compiled calls."""

    def __init__(self, interfaces: Mapping[int, str], *, batch: int = 1024, method: Method = "auto") -> None:
        """interfaces: names by switch port. batch: most frames that `receive` returns.

        Raises OSError naming the port and the interface that cannot be used.
        """
        self.batch = self._most = batch
        self._packet_bytes, self._look_s = 0, 0.0
        self.wires = new_wires(list(interfaces), batch)
        self._ports: dict[int, InterfacePort] = {}
        try:
            for row, (number, name) in enumerate(interfaces.items()):
                self._ports[number] = InterfacePort(number, name, method, self.wires, row)
        except OSError:
            self.close()
            raise
        self._make_room(0)

    @property
    def ports(self) -> Mapping[int, InterfacePort]:
        """The ports by switch port number."""
        return self._ports

    @property
    def methods(self) -> dict[int, str]:
        """How frames reach each port, in words."""
        families = {"xdp": "AF_XDP", "packet": "AF_PACKET"}
        return {number: f"{families[port.method]}, {port.why}" for number, port in self._ports.items()}

    @property
    def no_such_port(self) -> int:
        """Number of frames dropped because their egress port does not exist."""
        return int(self.wires.dropped[0])

    def resize(self, packet_bytes: int) -> None:
        """Accept frames with packets of `packet_bytes` from now on, for a new pipeline.

        Warns of interfaces whose MTU is smaller: packets do not pass there.
        AF_XDP's ports leave frames that are no packets of peelsum's to the kernel, unless the pipeline has
        none either: packets without values. AF_PACKET has copies.
        """
        self._make_room(packet_bytes)
        self._packet_bytes = packet_bytes
        for port in self._ports.values():
            port.look_at_mtu(packet_bytes, again=True)
            if port.xdp is not None:
                with suppress(OSError):  # the interface is gone
                    port.xdp.take(every_frame=packet_bytes <= HEADER_BYTES)

    def look_at_mtus(self) -> None:
        """Look, at most once a second, whether an interface's MTU has changed."""
        if (now := time.monotonic()) >= self._look_s:
            self._look_s = now + _LOOK_EVERY_S
            for port in self._ports.values():
                port.look_at_mtu(self._packet_bytes)

    def _make_room(self, packet_bytes: int) -> None:
        stride = -(-max(FRAME_HEADER_BYTES + packet_bytes, _ETHERNET_BYTES) // 64) * 64
        self.batch = frames_of_a_turn(self._most, stride)
        self.received = Frames(
            np.zeros((self.batch, stride), np.uint8),
            np.zeros(self.batch, np.int32),
            np.zeros(self.batch, np.int32),
        )

    def receive(self, ready: Sequence[int]) -> Frames:
        """Return frames that arrived on the ports `ready`, in order per port and in fair shares.

        The result may be empty and is valid until the next call. Other frames wait in the kernel.
        """
        self.look_at_mtus()
        frames, rows = self.received, self.wires.rows[list(ready)]
        share = max(1, self.batch // max(1, len(ready)))
        count = receive(self.wires, rows, share, frames.data, frames.length, frames.port)
        return Frames(frames.data[:count], frames.length[:count], frames.port[:count])

    def send(self, frames: Frames) -> None:
        """Send the frames on the interfaces of their ports, in order per port."""
        send(self.wires, frames.data, frames.length, frames.port)

    def close(self) -> None:
        """Close every port."""
        for port in self._ports.values():
            port.close()


def best_method(name: str) -> tuple[Method, str]:
    """Return how frames would reach a port on the interface `name`, and AF_XDP's mode or why it fails.

    It is tried and undone. Raises OSError if neither works, naming the interface.
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


def without_offloads(name: str) -> None:
    """Turn off an interface's offloads, as far as it has them and permits it.

    With offloads, the kernel delivers merged frames longer than any link allows, and unfinished checksums.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("=II", command, 0))
            request = struct.pack("16sP8x", name.encode(), ctypes.addressof(value))
            with suppress(OSError):
                fcntl.ioctl(control, _SIOCETHTOOL, request)


def _raw_socket(name: str) -> tuple[socket.socket, int, int]:
    """Return a socket with a ring, the bytes of a slot and their number."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        sock.setblocking(False)
        sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
        sock.setsockopt(_SOL_PACKET, _PACKET_VERSION, _SECOND_VERSION)
        longest = mtu_of(name) + ETHERNET_HEADER_BYTES
        size, number = _SHORT if _SLOT_BEGIN + longest <= _SHORT[0] else _LONG
        ring = struct.pack("=IIII", _BLOCK_BYTES, size * number // _BLOCK_BYTES, size, number)
        sock.setsockopt(_SOL_PACKET, _PACKET_RX_RING, ring)
        sock.bind((name, _ETH_P_ALL))
    except OSError:
        sock.close()
        raise
    return sock, size, number


def _error_text(what: str, error: OSError) -> str:
    match error.errno:
        case errno.EPERM | errno.EACCES:
            remedy = "raw sockets need root, or the capabilities CAP_NET_RAW and CAP_NET_ADMIN"
        case errno.ENODEV:
            remedy = f"use one of {', '.join(_interfaces())}"
        case _:
            remedy = "choose another interface"
    return f"interface {what}: {error.strerror}; {remedy}"


def _interfaces() -> list[str]:
    # /sys may still show another network namespace.
    return sorted(path.name for path in Path("/proc/sys/net/ipv4/neigh").iterdir() if path.name != "default")

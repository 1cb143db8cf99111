"""The embedded switch's ports as network interfaces, one raw socket (AF_PACKET) per port: a drop-in for BMv2.

Owns sockets and the batches of system calls that move frames. Refuses to know what a frame says, and who made
the interface. Linux only, and privileged.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.runtime.frames import Frames
from peelsum.wire import FRAME_HEADER_BYTES

_ETH_P_ALL = 3
# linux/if_packet.h; the `socket` module does not name them.
_SOL_PACKET = 263
_PACKET_STATISTICS = 6
_PACKET_IGNORE_OUTGOING = 23
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 8 << 20
_SIOCETHTOOL = 0x8946
#: ethtool commands that set: transmit checksum, TCP segmentation, generic segmentation, generic receive.
_OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)
_NAME_BYTES = 15
#: What is carried besides this pipeline's packets: a whole frame of Ethernet's usual size.
_ETHERNET_BYTES = 1514
_libc = ctypes.CDLL(None, use_errno=True)

#: `struct iovec` and `struct mmsghdr` of 64-bit Linux.
_IOVEC = np.dtype([("base", np.uint64), ("length", np.uint64)])
_MESSAGE = np.dtype(
    {
        "names": ["iov", "iovlen", "done"],
        "formats": [np.uint64, np.uint64, np.uint32],
        "offsets": [16, 24, 56],
        "itemsize": 64,
    }
)


@dataclass
class InterfaceCounts:
    """Frames of one port since it was opened.

    received, sent: carried into and out of the pipeline.
    full: dropped because a queue on the way out had no room.
    overrun: dropped by the kernel because the pipeline was slower, as the kernel counts them.
    long: longer than what the pipeline takes; dropped.
    down: left for an interface that is down or gone; dropped.
    """

    received: int = 0
    sent: int = 0
    full: int = 0
    overrun: int = 0
    long: int = 0
    down: int = 0


class InterfacePort:
    """One switch port on the interface `name`. Raises OSError naming it where it cannot be opened."""

    def __init__(self, number: int, name: str, rows: int) -> None:
        """rows: most frames of one system call."""
        self.number = number
        self.name = name
        self._counts = InterfaceCounts()
        self._iovecs = np.zeros(rows, _IOVEC)
        self._messages = np.zeros(rows, _MESSAGE)
        self._messages["iov"] = self._iovecs.ctypes.data + np.arange(rows, dtype=np.uint64) * _IOVEC.itemsize
        self._messages["iovlen"] = 1
        try:
            without_offloads(name)
            self.socket = _raw_socket(name)
        except OSError as error:
            raise OSError(error.errno, _complaint(number, name, error)) from error

    @property
    def counts(self) -> InterfaceCounts:
        """What this port did so far; a copy."""
        # The kernel starts from 0 again whenever it is asked.
        with suppress(OSError):
            told = self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
            self._counts.overrun += struct.unpack("=II", told)[1]
        return replace(self._counts)

    def receive_into(self, data: NDArray[np.uint8], length: NDArray[np.int32]) -> int:
        """Fill rows of `data` (uint8[n, stride], C-contiguous) and their `length` (int32[n]); how many.

        Never blocks. Frames longer than `stride` are dropped.
        """
        wanted = min(len(data), len(self._messages))
        self._point_at(data, np.arange(wanted), np.full(wanted, data.shape[1]))
        count, _ = self._call(_libc.recvmmsg, 0, wanted, socket.MSG_DONTWAIT | socket.MSG_TRUNC, None)
        got = self._messages["done"][:count]
        fit = got <= data.shape[1]
        kept = int(np.count_nonzero(fit))
        if kept < count:
            data[:kept] = data[:count][fit]
            self._counts.long += count - kept
        length[:kept] = got[fit]
        self._counts.received += kept
        return kept

    def send(self, data: NDArray[np.uint8], rows: NDArray[np.intp], length: NDArray[np.int32]) -> None:
        """Send the frames in `rows` of `data`, in order; what finds no room is dropped and counted."""
        for start in range(0, len(rows), len(self._messages)):
            part = rows[start : start + len(self._messages)]
            self._point_at(data, part, length[part])
            self._send_all(len(part))

    def close(self) -> None:
        """Leave the interface."""
        self.socket.close()

    def _send_all(self, count: int) -> None:
        at = 0
        while at < count:
            sent, problem = self._call(_libc.sendmmsg, at, count - at, socket.MSG_DONTWAIT)
            self._counts.sent += sent
            at += sent
            if problem == errno.ENOBUFS:  # this frame met a full queue; the next may not
                self._counts.full += 1
                at += 1
            elif problem == errno.EAGAIN:
                self._counts.full += count - at
                return
            elif problem and not sent:
                self._counts.down += count - at
                return

    def _point_at(self, data: NDArray[np.uint8], rows: NDArray[np.intp], length: NDArray[np.integer]) -> None:
        vectors = self._iovecs[: len(rows)]
        vectors["base"] = data.ctypes.data + rows.astype(np.uint64) * np.uint64(data.strides[0])
        vectors["length"] = length

    def _call(
        self, function: ctypes._NamedFuncPointer, first: int, count: int, *rest: object
    ) -> tuple[int, int]:
        """One recvmmsg or sendmmsg over messages from `first` on; how many it did, and errno or 0."""
        at = self._messages.ctypes.data + first * _MESSAGE.itemsize
        done = function(self.socket.fileno(), ctypes.c_void_p(at), ctypes.c_uint(count), *rest)
        return (done, 0) if done >= 0 else (0, ctypes.get_errno())


class InterfacePorts:
    """All ports of a switch, and the frames between them and the pipeline.

    no_such_port: frames that left for a port that is not here; dropped.
    """

    def __init__(self, interfaces: Mapping[int, str], *, batch: int = 1024) -> None:
        """interfaces: names by switch port. batch: how many frames `receive` brings at most.

        Raises OSError naming the port and the interface that cannot be used.
        """
        self._batch = batch
        self._ports: dict[int, InterfacePort] = {}
        self.no_such_port = 0
        try:
            for number, name in interfaces.items():
                self._ports[number] = InterfacePort(number, name, batch)
        except OSError:
            self.close()
            raise
        self.resize(0)

    @property
    def ports(self) -> Mapping[int, InterfacePort]:
        """The ports by switch port number."""
        return self._ports

    @property
    def listening(self) -> dict[int, int]:
        """UDP ports: none, hosts are on the wire."""
        return {}

    def holding(self) -> list[int]:
        """Ports that have read more than they have given up: none, everything waits in the kernel."""
        return []

    def resize(self, packet_bytes: int) -> None:
        """Take frames around packets of `packet_bytes` from now on: the pipeline has changed."""
        stride = -(-max(FRAME_HEADER_BYTES + packet_bytes, _ETHERNET_BYTES) // 64) * 64
        self._frames = Frames(
            np.zeros((self._batch, stride), np.uint8),
            np.zeros(self._batch, np.int32),
            np.zeros(self._batch, np.int32),
        )

    def receive(self, ready: Sequence[int]) -> Frames:
        """Frames that arrived on the ports numbered `ready`, each port's in order, in fair shares.

        May be empty. Valid until the next call. What is left waits in the kernel.
        """
        frames, count = self._frames, 0
        share = max(1, self._batch // max(1, len(ready)))
        for number in ready:
            room = slice(count, min(count + share, self._batch))
            got = self._ports[number].receive_into(frames.data[room], frames.length[room])
            frames.port[count : count + got] = number
            count += got
        return Frames(frames.data[:count], frames.length[:count], frames.port[:count])

    def send(self, frames: Frames) -> None:
        """Send the frames on the interfaces of their ports, in order per port."""
        here = 0
        for number, port in self._ports.items():
            rows = np.flatnonzero(frames.port == number)
            if rows.size:
                port.send(frames.data, rows, frames.length)
                here += rows.size
        self.no_such_port += len(frames) - here

    def send_by(self, number: int, frames: Frames) -> None:
        """Send the frames, all of which leave by port `number`, in order."""
        self._ports[number].send(frames.data, np.arange(len(frames)), frames.length)

    def close(self) -> None:
        """Leave every interface."""
        for port in self._ports.values():
            port.close()


def without_offloads(name: str) -> None:
    """Switch an interface's offloads off, as far as it has them and lets us.

    With them on, frames come merged into ones that no link could carry, and with checksums still to be made.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("=II", command, 0))
            request = struct.pack("16sP8x", name.encode(), ctypes.addressof(value))
            with suppress(OSError):
                fcntl.ioctl(control, _SIOCETHTOOL, request)


def _raw_socket(name: str) -> socket.socket:
    if not 0 < len(name.encode()) <= _NAME_BYTES:
        raise OSError(errno.ENODEV, "is no interface name")
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        sock.setblocking(False)
        sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        for option in (_SO_RCVBUFFORCE, _SO_SNDBUFFORCE):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        sock.bind((name, _ETH_P_ALL))
    except OSError:
        sock.close()
        raise
    return sock


def _complaint(number: int, name: str, error: OSError) -> str:
    match error.errno:
        case errno.EPERM | errno.EACCES:
            remedy = "raw sockets need root, or the capabilities CAP_NET_RAW and CAP_NET_ADMIN"
        case errno.ENODEV:
            remedy = f"use one of {', '.join(_interfaces())}"
        case _:
            remedy = "choose another interface"
    return f"interface {number}@{name}: {error.strerror}; {remedy}"


def _interfaces() -> list[str]:
    # Not from /sys: that may still show another network namespace.
    return sorted(path.name for path in Path("/proc/sys/net/ipv4/neigh").iterdir() if path.name != "default")

"""Switch ports on network interfaces, one raw socket (AF_PACKET) per port, as BMv2's.

System calls move frames in batches. Linux only, and privileged.
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
#: Least room for a frame: Ethernet's usual maximum.
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
    """Frames dropped because they were longer than the pipeline accepts."""
    down: int = 0
    """Frames dropped because the interface was down or removed."""


class InterfacePort:
    """One switch port on the interface `name`. Raises OSError naming it if it cannot be opened."""

    def __init__(self, number: int, name: str, rows: int) -> None:
        """rows: most frames per system call."""
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
            raise OSError(error.errno, _error_text(number, name, error)) from error

    @property
    def counts(self) -> InterfaceCounts:
        """A copy of the counts so far."""
        # Reading resets the kernel's count.
        with suppress(OSError):
            told = self.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
            self._counts.overrun += struct.unpack("=II", told)[1]
        return replace(self._counts)

    def receive_into(self, data: NDArray[np.uint8], length: NDArray[np.int32]) -> int:
        """Receive frames into rows of `data` (uint8[n, stride], C-contiguous), their bytes into `length`.

        `length` is int32[n]. Returns the number of frames and never blocks. Frames longer than `stride` are
        dropped.
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
        """Send the frames in `rows` of `data`, in order; drop and count those that do not fit the queue."""
        for start in range(0, len(rows), len(self._messages)):
            part = rows[start : start + len(self._messages)]
            self._point_at(data, part, length[part])
            self._send_all(len(part))

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _send_all(self, count: int) -> None:
        at = 0
        while at < count:
            sent, problem = self._call(_libc.sendmmsg, at, count - at, socket.MSG_DONTWAIT)
            self._counts.sent += sent
            at += sent
            if problem == errno.ENOBUFS:  # the queue was full for this frame; it may not be for the next
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
        """Call recvmmsg or sendmmsg from message `first` on; return the number processed, and errno or 0."""
        at = self._messages.ctypes.data + first * _MESSAGE.itemsize
        done = function(self.socket.fileno(), ctypes.c_void_p(at), ctypes.c_uint(count), *rest)
        return (done, 0) if done >= 0 else (0, ctypes.get_errno())


class InterfacePorts:
    """All ports of a switch, on interfaces.

    no_such_port: number of frames dropped because their egress port does not exist.
    """

    def __init__(self, interfaces: Mapping[int, str], *, batch: int = 1024) -> None:
        """interfaces: names by switch port. batch: most frames that `receive` returns.

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
        """UDP ports by switch port: none, as hosts are on the interfaces' links."""
        return {}

    def resize(self, packet_bytes: int) -> None:
        """Accept frames with packets of `packet_bytes` from now on, for a new pipeline."""
        stride = -(-max(FRAME_HEADER_BYTES + packet_bytes, _ETHERNET_BYTES) // 64) * 64
        self._frames = Frames(
            np.zeros((self._batch, stride), np.uint8),
            np.zeros(self._batch, np.int32),
            np.zeros(self._batch, np.int32),
        )

    def receive(self, ready: Sequence[int]) -> Frames:
        """Return frames that arrived on the ports `ready`, in order per port and in fair shares.

        The result may be empty and is valid until the next call. Other frames wait in the kernel.
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
        """Close every port."""
        for port in self._ports.values():
            port.close()


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


def _raw_socket(name: str) -> socket.socket:
    if not 0 < len(name.encode()) <= _NAME_BYTES:
        raise OSError(errno.ENODEV, "not an interface name")
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


def _error_text(number: int, name: str, error: OSError) -> str:
    match error.errno:
        case errno.EPERM | errno.EACCES:
            remedy = "raw sockets need root, or the capabilities CAP_NET_RAW and CAP_NET_ADMIN"
        case errno.ENODEV:
            remedy = f"use one of {', '.join(_interfaces())}"
        case _:
            remedy = "choose another interface"
    return f"interface {number}@{name}: {error.strerror}; {remedy}"


def _interfaces() -> list[str]:
    # /sys may still show another network namespace.
    return sorted(path.name for path in Path("/proc/sys/net/ipv4/neigh").iterdir() if path.name != "default")

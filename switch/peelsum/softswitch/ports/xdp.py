"""Sockets of the family AF_XDP: the kernel writes an interface's frames into memory of this process.

It uses system calls only, no library. An XDP program passes the frames of peelsum's packets, or all frames,
to the socket; the kernel gets the others. The program is removed when this process ends. Sources: Linux's
`Documentation/networking/af_xdp.rst`, `linux/if_xdp.h` and `linux/bpf.h`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import socket
import struct
import time
from contextlib import ExitStack
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.wire import FRAME_HEADER_BYTES, UDP_PORT
from peelsum.wire.mtu import ETHERNET_HEADER_BYTES, mtu_of

#: Frames in each of a socket's four rings; a power of two.
RING: Final = 2048
#: Bytes of a chunk of memory for frames: the most that Linux takes, a page. A longer frame takes several.
CHUNK: Final = 4096
#: Most chunks of a frame.
MOST_CHUNKS: Final = 4
#: Bytes that Linux leaves free at the beginning of a chunk in which a frame arrives.
_HEADROOM = 256
_AF_XDP, _SOL_XDP = 44, 283
_MMAP_OFFSETS, _RX_RING, _TX_RING, _UMEM_REG, _FILL_RING, _COMPLETION_RING, _STATISTICS = range(1, 8)
#: Where `mmap` finds the rings, and their bytes an entry.
_RX_AT, _TX_AT, _FILL_AT, _COMPLETION_AT = 0, 0x80000000, 0x100000000, 0x180000000
_DESCRIPTION_BYTES, _ADDRESS_BYTES = 16, 8
_NEED_WAKEUP, _USE_SG = 8, 16
_SO_SNDBUFFORCE, _BUFFER_BYTES = 32, 2 * RING * CHUNK
#: Seconds to retry `bind` while the queue is in use, and seconds between two attempts.
_FREED_WITHIN_S, _PAUSE_S = 1.0, 0.005
_SYSTEM_CALL = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_UPDATE, _PROGRAM_LOAD, _LINK_CREATE, _LINK_UPDATE = 0, 2, 5, 28, 29
_SOCKET_MAP, _XDP_PROGRAM, _XDP_ATTACHED, _ANY_FRAGMENTS = 17, 6, 37, 1 << 5
_GENERIC, _NATIVE = 1 << 1, 1 << 2
_PASS, _REDIRECT_BY_MAP = 2, 51
_libc = ctypes.CDLL(None, use_errno=True)


class RingAddresses(NamedTuple):
    """The addresses of a ring's indices and entries in this process."""

    producer: int
    consumer: int
    entries: int


class XdpSocket:
    """Queue 0 of an interface, which must have no other. Raises OSError if this machine cannot open it.

    `rx`, `tx`, `fill` and `completion` have the addresses of its rings, `memory` that of 2 * RING chunks;
    `longest` is the bytes of the longest frame that can arrive. The kernel has the first RING chunks for
    frames that arrive; the others are for frames that leave. A frame has several chunks only if the
    interface's MTU asks for it: Linux has that since 6.6, drivers seldom without a copy.
    """

    def __init__(self, name: str) -> None:
        self._closing = ExitStack()
        self._maps: list[NDArray[np.uint8]] = []
        try:
            self._open(name)
        except OSError:
            self.close()
            raise

    def _open(self, name: str) -> None:
        """Register memory, make the rings, bind to the interface, and attach the XDP program."""
        index = socket.if_nametoindex(name)
        self.socket = self._closing.enter_context(socket.socket(_AF_XDP, socket.SOCK_RAW, 0))
        # The kernel counts frames that it has not delivered yet against this limit.
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
        memory = mmap.mmap(-1, 2 * RING * CHUNK)
        self._memory = np.frombuffer(memory, np.uint8)
        self.memory = int(self._memory.ctypes.data)
        region = struct.pack("=QQIII4x", self.memory, len(memory), CHUNK, 0, 0)
        try:
            self.socket.setsockopt(_SOL_XDP, _UMEM_REG, region)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            remedy = (
                f"a port locks {len(memory) >> 20} MiB of memory: give CAP_IPC_LOCK, or `ulimit -l unlimited`"
            )
            raise OSError(error.errno, remedy) from error
        for ring in (_FILL_RING, _COMPLETION_RING, _RX_RING, _TX_RING):
            self.socket.setsockopt(_SOL_XDP, ring, struct.pack("=I", RING))
        offsets = struct.unpack("=16Q", self.socket.getsockopt(_SOL_XDP, _MMAP_OFFSETS, 128))
        self.rx = self._ring(_RX_AT, offsets[0:4], _DESCRIPTION_BYTES)
        self.tx = self._ring(_TX_AT, offsets[4:8], _DESCRIPTION_BYTES)
        self.fill = self._ring(_FILL_AT, offsets[8:12], _ADDRESS_BYTES)
        self.completion = self._ring(_COMPLETION_AT, offsets[12:16], _ADDRESS_BYTES)
        # Give the kernel the first RING chunks.
        fill_ring, first = self._maps[2], int(self._maps[2].ctypes.data)
        offset, producer = self.fill.entries - first, self.fill.producer - first
        chunks = CHUNK * np.arange(RING, dtype=np.uint64)
        fill_ring[offset : offset + RING * _ADDRESS_BYTES].view(np.uint64)[:] = chunks
        fill_ring[producer : producer + 4].view(np.uint32)[0] = RING
        self._multi_chunk = mtu_of(name) + ETHERNET_HEADER_BYTES > CHUNK - _HEADROOM
        self.longest = (MOST_CHUNKS if self._multi_chunk else 1) * (CHUNK - _HEADROOM)
        _bind(self.socket, index, 0, _NEED_WAKEUP | (_USE_SG if self._multi_chunk else 0))
        if _has_queue(index, 1):
            raise OSError(errno.EINVAL, f"it has several queues; run `ethtool -L {name} combined 1`")
        self._sockets = self._descriptor(_bpf(_MAP_CREATE, struct.pack("=IIII", _SOCKET_MAP, 4, 4, 1)))
        key, value = struct.pack("=I", 0), struct.pack("=I", self.socket.fileno())
        _bpf(_MAP_UPDATE, struct.pack("=I4xQQQ", self._sockets, _address(key), _address(value), 0))
        program = self._descriptor(_load(_program_instructions(self._sockets, every_frame=False)))
        try:
            self._link = self._descriptor(_attach(program, index, _NATIVE))
            self.mode = "native"
        except OSError:
            self._link = self._descriptor(_attach(program, index, _GENERIC))
            self.mode = "generic"

    def take(self, *, every_frame: bool) -> None:
        """Choose which frames the socket gets from now on: those of peelsum's packets, or all."""
        program = _load(_program_instructions(self._sockets, every_frame=every_frame))
        try:
            _bpf(_LINK_UPDATE, struct.pack("=IIII", self._link, program, 0, 0))
        finally:
            os.close(program)

    def dropped(self) -> tuple[int, int]:
        """Return how many frames the kernel dropped because a ring was full, and how many were too long."""
        statistics = struct.unpack("=6Q", self.socket.getsockopt(_SOL_XDP, _STATISTICS, 48))
        # A frame without a free chunk counts twice if it needs one chunk. One of several is never too long.
        without_chunk = statistics[0] if self._multi_chunk else statistics[4]
        return statistics[3] + without_chunk, max(0, statistics[0] - without_chunk)

    def close(self) -> None:
        """Detach the program, close the socket, and release its rings, which would keep it open."""
        self._maps.clear()
        self._closing.close()

    def _ring(self, at: int, offsets: tuple[int, ...], entry_bytes: int) -> RingAddresses:
        """Map one ring of the socket into this process; return its addresses."""
        size = offsets[2] + RING * entry_bytes
        shared = np.frombuffer(mmap.mmap(self.socket.fileno(), size, offset=at), np.uint8)
        self._maps.append(shared)
        first = int(shared.ctypes.data)
        return RingAddresses(first + offsets[0], first + offsets[1], first + offsets[2])

    def _descriptor(self, number: int) -> int:
        self._closing.callback(os.close, number)
        return number


def _bind(sock: socket.socket, index: int, queue: int, flags: int = _NEED_WAKEUP) -> None:
    """Bind to an interface's queue. Retry a while: the kernel frees it some time after its socket closes."""
    address = struct.pack("=HHIII", _AF_XDP, flags, index, queue, 0)
    ends_at = time.monotonic() + _FREED_WITHIN_S
    while _libc.bind(sock.fileno(), address, len(address)):
        error_number = ctypes.get_errno()
        if error_number != errno.EBUSY or time.monotonic() > ends_at:
            raise OSError(error_number, os.strerror(error_number))
        time.sleep(_PAUSE_S)


def _has_queue(index: int, queue: int) -> bool:
    """Return whether an interface has a queue of this number: otherwise the kernel refuses to bind to it."""
    mapping = mmap.mmap(-1, CHUNK)
    area = np.frombuffer(mapping, np.uint8)
    with socket.socket(_AF_XDP, socket.SOCK_RAW, 0) as probe:
        probe.setsockopt(_SOL_XDP, _UMEM_REG, struct.pack("=QQIII4x", area.ctypes.data, CHUNK, CHUNK, 0, 0))
        for ring in (_FILL_RING, _COMPLETION_RING, _RX_RING):
            probe.setsockopt(_SOL_XDP, ring, struct.pack("=I", 1))
        try:
            _bind(probe, index, queue)
        except OSError as error:
            return error.errno != errno.EINVAL
    return True


def _bpf(command: int, attributes: bytes) -> int:
    """Call bpf(2). Raises OSError."""
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf: not known on {platform.machine()}")
    padded = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = int(_libc.syscall(number, command, padded, 128))
    if result < 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number))
    return result


def _load(instructions: bytes) -> int:
    licence = b"Apache-2.0\0"
    head = struct.pack(
        "=IIQQIIQ", _XDP_PROGRAM, len(instructions) // 8, _address(instructions), _address(licence), 0, 0, 0
    )
    tail = struct.pack("=II16sII", 0, _ANY_FRAGMENTS, b"peelsum", 0, _XDP_ATTACHED)
    return _bpf(_PROGRAM_LOAD, head + tail)


def _attach(program: int, index: int, mode: int) -> int:
    return _bpf(_LINK_CREATE, struct.pack("=IIII", program, index, _XDP_ATTACHED, mode))


def _address(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def _program_instructions(sockets: int, *, every_frame: bool) -> bytes:
    """Return the XDP program that passes frames of peelsum's packets, or every frame, to the map's socket.

    Frames with VLAN tags or IPv4 options, and fragments, do not count as peelsum's.
    """
    # EtherType IPv4; no options; UDP; the destination port: (bytes, offset, value).
    fields = ((2, 12, 0x0800), (1, 14, 0x45), (1, 23, 17), (2, 36, UDP_PORT))
    tests = [
        _load_instruction(4, 2, 1, 0),  # r2 = the frame
        _load_instruction(4, 3, 1, 4),  # r3 = its end
        _instruction(0xBF, 2 << 4 | 4),  # r4 = r2
        _instruction(0x07, 4, 0, FRAME_HEADER_BYTES),
        _instruction(0x2D, 3 << 4 | 4),  # a frame shorter than its headers
    ]
    for size, offset, value in fields:
        expected = socket.htons(value) if size == 2 else value
        tests += [_load_instruction(size, 5, 2, offset), _instruction(0x55, 5, 0, expected)]
    # A fragment.
    tests += [_load_instruction(2, 5, 2, 20), _instruction(0x57, 5, 0, socket.htons(0x3FFF))]
    tests.append(_instruction(0x55, 5))
    take = [
        _load_instruction(4, 2, 1, 16),  # r2 = the queue
        _instruction(0x18, 1 << 4 | 1, 0, sockets),  # r1 = the map
        bytes(8),
        _instruction(0xB7, 3, 0, _PASS),  # r3: what to do without a socket
        _instruction(0x85, 0, 0, _REDIRECT_BY_MAP),
        _EXIT,
    ]
    # The kernel refuses a program with instructions that nothing reaches.
    pass_to_kernel = [] if every_frame else [_instruction(0xB7, 0, 0, _PASS), _EXIT]
    body = take if every_frame else [*tests, *take]
    # A jump's offset counts from the next instruction.
    jumps = [
        instruction[:2] + struct.pack("<h", len(body) - position - 1) + instruction[4:]
        if instruction[0] in _JUMPS
        else instruction
        for position, instruction in enumerate(body)
    ]
    return b"".join([*jumps, *pass_to_kernel])


#: Jump if r2 > r3; jump if a register is not a constant.
_JUMPS = (0x2D, 0x55)


def _instruction(opcode: int, registers: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", opcode, registers, offset, value)


_EXIT = _instruction(0x95)


def _load_instruction(size: int, target: int, source: int, offset: int) -> bytes:
    """Return `target = *(source + offset)`, of 1, 2 or 4 bytes."""
    return _instruction({4: 0x61, 2: 0x69, 1: 0x71}[size], source << 4 | target, offset)

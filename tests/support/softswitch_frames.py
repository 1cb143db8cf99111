"""Frames and headers as tests of the softswitch make and read them."""

import numpy as np

from peelsum.softswitch import Frames
from peelsum.wire.datagrams import BatchSocket


def held(*frames):
    """Return frames as a switch does, from (port, bytes, departure time in microseconds)."""
    made = Frames.of([(port, data) for port, data, _ in frames])
    leave = np.array([round(at * 65536) % (1 << 64) for _, _, at in frames], np.uint64)
    return Frames(made.data, made.length, made.port, leave)


def packed(values, widths):
    word = 0
    for name, bits in widths.items():
        assert 0 <= values[name] < 1 << bits, name
        word = word << bits | values[name]
    return word.to_bytes(sum(widths.values()) // 8, "big")


def received(sock: BatchSocket, size: int) -> np.ndarray:
    """Return all packets of `size` bytes that have arrived."""
    bursts = [np.zeros((0, size), np.uint8)]
    while (burst := sock.receive()) is not None:
        bursts.append(burst.packets.copy())
    return np.concatenate(bursts)

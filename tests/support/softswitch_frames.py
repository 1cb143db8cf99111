"""Frames as tests of the softswitch make and read them."""

import contextlib

import numpy as np

from peelsum.softswitch import Frames
from peelsum.wire.datagrams import BatchSocket


def held(*frames):
    """Return frames as a switch does, from (port, bytes, departure time in microseconds)."""
    made = Frames.of([(port, data) for port, data, _ in frames])
    leave = np.array([round(at * 65536) % (1 << 64) for _, _, at in frames], np.uint64)
    return Frames(made.data, made.length, made.port, leave)


def send(switch, *frames, port=3):
    """Return what leaves a switch, as (port, bytes), of frames that arrive at one port at time 0."""
    return switch.process(Frames.of([(port, frame) for frame in frames]), 0).pairs()


def received(sock, size):
    """Return all packets of `size` bytes that have arrived."""
    bursts = [np.zeros((0, size), np.uint8)]
    while (burst := sock.receive()) is not None:
        bursts.append(burst.packets.copy())
    return np.concatenate(bursts)


class StubSwitch:
    """A switch of some lanes that is not compiled: it sends frames to ports from `route`, by default back."""

    entry = None

    def __init__(self, route=lambda port: port, lanes=8):
        self.registers = dict.fromkeys([f"ingress.lanes.lane_{i}" for i in range(lanes)] + ["owner_tag"])
        self.route = route
        #: Of each batch: the time, and the ports of its frames.
        self.clock, self.ports = [], []

    def process(self, frames, now_us):
        self.clock.append(now_us)
        self.ports.append(frames.port.tolist())
        return Frames(frames.data.copy(), frames.length, self.route(frames.port).astype(np.int32))


@contextlib.contextmanager
def host_at(receive, udp_port, size):
    """A host whose hello a switch port has answered, so that it is the port's peer.

    receive: lets the switch receive for a second, or what has arrived.
    """
    with BatchSocket.bind(("127.0.0.1", 0), size) as sock:
        sock.connect(("127.0.0.1", udp_port))
        sock.send_hello()
        receive(1)
        answer = sock.receive()
        assert answer.hello
        yield sock

"""Frames are held until their port may send them; none leaves early or late, is lost or out of order."""

import random
from collections import defaultdict

import numpy as np
import pytest
from softswitch_frames import held

from peelsum.softswitch import Frames
from peelsum.softswitch.data_plane import DataPlane
from peelsum.softswitch.ports.pacing import PAUSE_US, Pacer
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.runtime.device import Device
from peelsum.softswitch.runtime.queues import Queues
from peelsum.wire import CPU_PORT, packet_bytes
from peelsum.wire.datagrams import BatchSocket

CLOCK = 1 << 48
LANES = 8


class Outlet:
    """A pacer, and the frames that it has sent, by port."""

    def __init__(self, *ports, limit=8):
        self.left = defaultdict(list)
        self.pacer = Pacer(Queues(dict.fromkeys(ports, 100), limit), self._send)

    def _send(self, frames):
        (port,) = set(frames.port.tolist())
        self.left[port] += [data for _, data in frames.pairs()]


def test_frames_leave_when_their_time_has_come():
    outlet = Outlet(3)
    rest = outlet.pacer.hold(held((3, b"a", 10), (3, b"bb", 500), (3, b"c", 900.5)), 0)
    assert len(rest) == 0
    for now, left in (
        (9, []),
        (10, [b"a"]),
        (499, [b"a"]),
        (900, [b"a", b"bb"]),
        (1200, [b"a", b"bb", b"c"]),
    ):
        outlet.pacer.release(now)
        assert outlet.left[3] == left


def test_frames_of_other_ports_are_given_back():
    outlet = Outlet(3)
    rest = outlet.pacer.hold(held((4, b"x", 0), (3, b"a", 10), (5, b"y", 0)), 0)
    assert rest.pairs() == [(4, b"x"), (5, b"y")]
    assert not outlet.left


def test_after_some_left_others_leave_together():
    outlet = Outlet(3)
    outlet.pacer.hold(held(*((3, bytes([at]), at) for at in (10, 20, 30))), 0)
    outlet.pacer.release(10)
    assert outlet.pacer.due_in(10) == pytest.approx(PAUSE_US / 1e6)
    outlet.pacer.release(25)
    assert len(outlet.left[3]) == 1
    outlet.pacer.release(10 + PAUSE_US)
    assert len(outlet.left[3]) == 3


def test_due_is_the_earliest_port_s():
    outlet = Outlet(3, 4)
    assert outlet.pacer.due_in(0) is None
    outlet.pacer.hold(held((3, b"a", 900), (4, b"b", 300.1)), 0)
    assert outlet.pacer.due_in(0) == pytest.approx(301e-6)
    assert outlet.pacer.due_in(400) == 0


def test_a_full_ring_makes_room_with_what_may_leave():
    outlet = Outlet(3, limit=3)
    outlet.pacer.hold(held((3, b"a", 1), (3, b"b", 2), (3, b"c", 9)), 0)
    outlet.pacer.release(1)
    outlet.pacer.hold(held((3, b"d", 10), (3, b"e", 11)), 5)
    assert outlet.left[3] == [b"a", b"b"]
    outlet.pacer.release(1000)
    assert outlet.left[3] == [b"a", b"b", b"c", b"d", b"e"]


def test_the_clock_may_wrap():
    outlet = Outlet(3)
    outlet.pacer.hold(held((3, b"a", CLOCK - 5), (3, b"b", CLOCK + 300)), CLOCK - 10)
    outlet.pacer.release(CLOCK - 6)
    assert not outlet.left[3]
    outlet.pacer.release(CLOCK - 5)
    assert outlet.left[3] == [b"a"]
    assert outlet.pacer.due_in(299 + CLOCK) == pytest.approx(1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_all_frames_come_out_in_order_and_in_time(seed):
    rng = random.Random(seed)
    outlet = Outlet(1, 2, limit=20)
    given, leaves = defaultdict(list), {1: [0.0], 2: [0.0]}
    now = 0
    for _ in range(200):
        batch = []
        for _ in range(rng.randrange(8)):
            port = rng.choice([1, 2])
            if sum(leave > now for leave in leaves[port]) == 20:
                continue
            leaves[port].append(max(leaves[port][-1], now) + rng.choice([1, 20, 300]))
            batch.append((port, rng.randbytes(rng.randrange(1, 90)), leaves[port][-1]))
            given[port].append((leaves[port][-1], batch[-1][1]))
        if batch:
            outlet.pacer.hold(held(*batch), now)
        now += rng.randrange(150)
        outlet.pacer.release(now)
        for port, frames in given.items():
            gone = len(outlet.left[port])
            assert outlet.left[port] == [data for _, data in frames[:gone]]
            assert all(leave <= now for leave, _ in frames[:gone])
            assert all(leave > now - PAUSE_US for leave, _ in frames[gone:])


class Doubler:
    """A switch that sends every frame back twice, through the queues."""

    entry = None  # not compiled

    def __init__(self, leave_us):
        self.registers = {f"lane_{i}": None for i in range(LANES)}
        self._leave_us = leave_us

    def process(self, frames, now_us):
        twice = frames.at(np.repeat(np.arange(len(frames)), 2))
        leave = (np.arange(1, len(twice) + 1) * self._leave_us + now_us) << 16
        return Frames(twice.data, twice.length, twice.port, leave.astype(np.uint64))


def test_the_data_plane_sends_by_its_clock():
    now_ns = 0
    ports, device = UdpPorts([1, 2]), Device(queues=Queues({1: 100}))
    size = packet_bytes(LANES)
    with (
        DataPlane(device, ports, clock=lambda: now_ns) as plane,
        BatchSocket.bind(("127.0.0.1", 0), size) as host,
        BatchSocket.bind(("127.0.0.1", 0), size) as other,
    ):
        for number, sock in enumerate((host, other), 1):
            sock.connect(("127.0.0.1", ports.listening[number]))
            sock.send_hello()
            plane.turn(1)
            assert sock.receive().hello
        device.install(Doubler(leave_us=300))
        sent = np.arange(3 * size, dtype=np.uint8).reshape(3, size)
        for sock in (host, other):
            sock.send(sent)
        while ports.ports[2].counts.sent < 6:
            plane.turn(1)
        assert np.array_equal(other.receive().packets, np.repeat(sent, 2, axis=0))
        for turn in range(1, 7):
            assert host.receive() is None
            now_ns = turn * 300_000 + 1000
            plane.turn(0)
            assert np.array_equal(host.receive().packets, sent[[(turn - 1) // 2]])
    device.close()
    ports.close()


def test_the_controller_waits_for_no_queue():
    delivered = []
    ports, device = UdpPorts([1]), Device(queues=Queues({1: 100}))
    device.on_packet_in(delivered.extend)
    with DataPlane(device, ports) as plane:
        device.install(Doubler(leave_us=10**6))
        device.inject(b"frame")
        plane.turn(1)
    assert delivered == [b"frame"] * 2
    assert CPU_PORT not in ports.ports
    device.close()
    ports.close()

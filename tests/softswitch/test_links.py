"""Delays and schedules at ports, in virtual time: frames are late by what the link says, and in order."""

import random
import struct

import numpy as np
import pytest
from softswitch_frames import held

from peelsum.softswitch import Frames, SoftswitchError
from peelsum.softswitch.data_plane import DataPlane
from peelsum.softswitch.ports.links import Links
from peelsum.softswitch.ports.pacing import PAUSE_US, Pacer
from peelsum.softswitch.ports.schedule import Change, LinkSchedule, LinkState
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.runtime.device import Device
from peelsum.softswitch.runtime.queues import Queues
from peelsum.wire import packet_bytes
from peelsum.wire.datagrams import BatchSocket

LANES = 8
CLOCK = 1 << 48


class Outlet:
    """A pacer, and when each frame was sent."""

    def __init__(self, queues=None, delays=None):
        self.sent, self.now = [], 0
        self.pacer = Pacer(queues, self._send, delays)

    def _send(self, frames):
        self.sent += [(self.now, port, data) for port, data in frames.pairs()]

    def at(self, now):
        self.now = now
        self.pacer.release(now)
        return [data for _, _, data in self.sent]


def test_a_delay_is_added_to_the_time_of_departure():
    outlet = Outlet(Queues({3: 100}), {3: 1000})
    assert len(outlet.pacer.hold(held((3, b"a", 10), (3, b"b", 500)), 0)) == 0
    assert outlet.at(1009) == []
    assert outlet.at(1010) == [b"a"]
    assert outlet.pacer.due_in(1010) == pytest.approx(490e-6)
    assert outlet.at(1500) == [b"a", b"b"]


@pytest.mark.parametrize("queues", [None, Queues({7: 1})])
def test_a_port_without_a_rate_may_have_a_delay(queues):
    outlet = Outlet(queues, {3: 250})
    frames = Frames.of([(3, b"a"), (4, b"x")])
    rest = outlet.pacer.hold(frames if queues is None else held((3, b"a", 0), (4, b"x", 0)), 100)
    assert rest.pairs() == [(4, b"x")]
    assert outlet.at(349) == []
    assert outlet.at(350) == [b"a"]


def test_a_long_delay_keeps_more_frames_than_may_wait():
    outlet = Outlet(Queues({3: 100}, 2), {3: 10_000})
    for number in range(50):
        outlet.now = 10 * number
        outlet.pacer.hold(held((3, bytes([number]), 10 * number + 5)), 10 * number)
    assert outlet.at(10_004) == []
    assert outlet.at(10_005 + 24 * 10) == [bytes([number]) for number in range(25)]
    assert outlet.at(20_000) == [bytes([number]) for number in range(50)]


def test_no_frame_overtakes_another_when_the_delay_falls():
    outlet = Outlet(Queues({3: 100}), {3: 5000})
    outlet.pacer.hold(held((3, b"slow", 10)), 0)
    outlet.pacer.set_delay(3, 0)
    outlet.pacer.hold(held((3, b"quick", 20)), 15)
    assert outlet.at(5009) == []
    assert outlet.at(5010) == [b"slow", b"quick"]


def test_the_clock_may_wrap_within_a_delay():
    outlet = Outlet(Queues({3: 100}), {3: 1000})
    outlet.pacer.hold(held((3, b"a", CLOCK - 5), (3, b"b", CLOCK + 10)), CLOCK - 10)
    assert outlet.at(994) == []
    assert outlet.at(995) == [b"a"]
    assert outlet.at(995 + PAUSE_US) == [b"a", b"b"]


@pytest.mark.parametrize("seed", range(5))
def test_any_delays_keep_order_and_lose_nothing(seed):
    rng = random.Random(seed)
    outlet, given, now, due, leave = Outlet(Queues({1: 1}, 3), {1: 0}), [], 0, 0, 0
    for number in range(300):
        if rng.random() < 0.1:
            delay = rng.choice([0, 7, 400, 9000])
            outlet.pacer.set_delay(1, delay)
            given.append(None)
        frames = []
        for part in range(rng.randrange(5)):
            leave = max(leave, now) + rng.randrange(20)
            frames.append((1, struct.pack(">HB", number, part), leave))
        outlet.now = now
        if frames:
            outlet.pacer.hold(held(*frames), now)
        for _, data, at in frames:
            due = max(due, at + (outlet.pacer._rings[1].delay >> 16))
            given.append((due, data))
        now += rng.randrange(60)
        outlet.at(now)
        wanted = [one for one in given if one is not None]
        assert [data for _, _, data in outlet.sent] == [data for _, data in wanted[: len(outlet.sent)]]
        assert all(at >= early for (at, _, _), (early, _) in zip(outlet.sent, wanted, strict=False))
        assert all(at > now - PAUSE_US for at, _ in wanted[len(outlet.sent) :])


def schedule(*changes, repeat_s=None):
    return LinkSchedule([Change(at, LinkState(*state), port) for at, state, port in changes], repeat_s)


def test_a_schedule_starts_with_the_first_frame_and_changes_rate_and_delay():
    links = Links([1, 2], schedule=schedule((0, (100, 1), None), (2, (10, None), None), (3, (None, 5), 2)))
    pacer = links.pacer(lambda *_: None)
    assert pacer is not None
    costs = lambda: [int(links.queues.memory[int(links.queues.memory[port])]) for port in (1, 2)]  # noqa: E731
    delays = lambda: [pacer._rings[port].delay >> 16 for port in (1, 2)]  # noqa: E731
    fast = costs()[0]
    start = 7_000_000
    for after_us, rate, delay in (
        (0, 1, [1000, 1000]),
        (1_999_999, 1, [1000, 1000]),
        (2_000_000, 10, [1000, 1000]),
        (3_000_000, 10, [1000, 5000]),
    ):
        links.follow(pacer, start + after_us)
        assert costs() == pytest.approx([rate * fast] * 2)
        assert delays() == delay


def test_a_new_pipeline_goes_on_in_the_schedule():
    links = Links([1], schedule=schedule((0, (100, 1), None), (2, (None, 9), None)))
    links.follow(links.pacer(lambda *_: None), 0)
    again = links.pacer(lambda *_: None)
    links.follow(again, 2_500_000)
    assert again._rings[1].delay >> 16 == 9000


def test_rates_may_come_before_the_schedule_s_first():
    late = schedule((5, (10, None), None))
    with pytest.raises(SoftswitchError, match="schedule: port 1 has no rate at first; set mbit at 0 s"):
        Links([1], schedule=late)
    assert Links([1], rates={1: 50}, schedule=late).queues.ports == [1]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rates": {9: 1}}, "port rate: port 9 is not there; use one of 1, 2"),
        ({"delays": {9: 1}}, "port delay: port 9 is not there"),
        ({"arrival_delays": {9: 1}}, "arrival delay: port 9 is not there"),
        ({"arrival_delays": {1: 1e9}}, "delay_ms: 1e.09 is out of range"),
        ({"delays": {1: -1}}, "delay_ms: -1 is out of range"),
        ({"schedule": schedule((0, (1, 1), 9))}, "schedule: port 9 is not there"),
    ],
)
def test_mistakes_are_named(given, told):
    with pytest.raises(SoftswitchError, match=told):
        Links([1, 2], **given)


class Returner:
    """A switch without queues that sends every frame back."""

    def __init__(self):
        self.registers = {f"lane_{i}": None for i in range(LANES)}

    def process(self, frames, now_us):
        return frames.at(np.arange(len(frames)))


def test_the_data_plane_delays_by_its_clock_and_schedule():
    now_ns = 0
    size = packet_bytes(LANES)
    ports, device = UdpPorts([1]), Device()
    links = Links([1], schedule=schedule((0, (None, 2), None), (1, (None, 30), None)))
    with (
        DataPlane(device, ports, links=links, clock=lambda: now_ns) as plane,
        BatchSocket.bind(("127.0.0.1", 0), size) as host,
    ):
        host.connect(("127.0.0.1", ports.listening[1]))
        host.send_hello()
        plane.turn(1)
        assert host.receive().hello
        device.install(Returner())
        for start_ms, delay_ms in ((5000, 2), (5999, 2), (6000, 30), (9000, 30)):
            now_ns = start_ms * 10**6
            received = ports.ports[1].counts.received
            host.send(np.full((1, size), 7, np.uint8))
            while ports.ports[1].counts.received == received:
                plane.turn(1)
            now_ns = (start_ms + delay_ms) * 10**6 - 1000
            plane.turn(0)
            assert host.receive() is None
            now_ns += 1000
            plane.turn(0)
            assert np.array_equal(host.receive().packets, np.full((1, size), 7, np.uint8))
    device.close()
    ports.close()


def test_arriving_frames_are_late_and_in_order_and_a_stop_drops_those_under_way():
    now_ns = 0
    size = packet_bytes(LANES)
    ports, device = UdpPorts([1]), Device()
    links = Links([1], delays={1: 3}, arrival_delays={1: 4})
    with (
        DataPlane(device, ports, links=links, clock=lambda: now_ns) as plane,
        BatchSocket.bind(("127.0.0.1", 0), size) as host,
    ):

        def send_at(ms, count, value):
            nonlocal now_ns
            now_ns = round(ms * 1e6)
            received = ports.ports[1].counts.received + count
            host.send(np.full((count, size), value, np.uint8))
            while ports.ports[1].counts.received < received:
                plane.turn(1)

        def back_at(ms):
            nonlocal now_ns
            now_ns = round(ms * 1e6)
            plane.turn(0)
            found = host.receive()
            return [] if found is None else found.packets[:, 0].tolist()

        host.connect(("127.0.0.1", ports.listening[1]))
        host.send_hello()
        plane.turn(1)
        assert host.receive().hello
        device.install(Returner())
        send_at(0, 3, 5)
        send_at(2, 2, 6)
        assert back_at(3.999) == []
        assert back_at(4) == []  # they enter the pipeline now, and leave 3 ms later
        assert back_at(6) == []
        assert back_at(6.999) == []
        assert back_at(7) == [5, 5, 5]
        assert back_at(9) == [6, 6]
        send_at(20, 100, 7)
        plane.stop()
        plane.run()
        assert ports.ports[1].counts.sent == 5
    device.close()
    ports.close()

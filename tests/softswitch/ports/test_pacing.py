"""Rates, delays and schedules of links, in virtual time: no frame leaves early or late, or out of order."""

import contextlib
import random

import numpy as np
import pytest
from softswitch_frames import StubSwitch, held, host_at

from peelsum.softswitch import Frames, SoftswitchError
from peelsum.softswitch.ports.links import Change, Links, LinkSchedule, LinkState, load_schedule
from peelsum.softswitch.ports.pacing import PAUSE_US, Pacer
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.process import DataPlane
from peelsum.softswitch.runtime.device import Device
from peelsum.softswitch.runtime.queues import Queues
from peelsum.wire import CPU_PORT, packet_bytes

CLOCK = 1 << 48
SIZE = packet_bytes(8)


class Outlet:
    """A pacer, and the frames that it has sent: when, by which port, and their bytes."""

    def __init__(self, *ports, limit=8, delays=None):
        self.sent, self.now = [], 0
        queues = Queues(dict.fromkeys(ports, 100), limit) if ports else None
        self.pacer = Pacer(queues, self._send, delays)

    def _send(self, frames):
        assert len(set(frames.port.tolist())) == 1
        self.sent += [(self.now, port, data) for port, data in frames.pairs()]

    def hold(self, *frames, now=0):
        self.now = now
        return self.pacer.hold(held(*frames), now).pairs()

    def at(self, now):
        """Return all frames that have left by a time."""
        self.now = now
        self.pacer.release(now)
        return [data for _, _, data in self.sent]


def test_after_some_left_others_leave_together():
    outlet = Outlet(3)
    outlet.hold(*((3, bytes([at]), at) for at in (10, 20, 30)))
    assert len(outlet.at(10)) == 1
    assert outlet.pacer.due_in(10) == pytest.approx(PAUSE_US / 1e6)
    assert len(outlet.at(25)) == 1
    assert len(outlet.at(10 + PAUSE_US)) == 3


@pytest.mark.parametrize(("delay", "zero"), [(0, CLOCK), (1000, 0)])
def test_the_clock_may_wrap(delay, zero):
    outlet = Outlet(3, delays={3: delay})
    outlet.hold((3, b"a", CLOCK - 5), (3, b"b", CLOCK + 300), now=CLOCK - 10)
    assert outlet.at(zero + delay - 6) == []
    assert outlet.at(zero + delay - 5) == [b"a"]
    assert outlet.pacer.due_in(zero + delay + 299) == pytest.approx(1e-6)
    assert outlet.at(zero + delay + 300) == [b"a", b"b"]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("delayed", [False, True])
def test_all_frames_come_out_in_order_and_in_time(seed, delayed):
    rng = random.Random(seed)
    outlet = Outlet(1, 2, limit=20, delays={1: 0, 2: 0} if delayed else None)
    given, leaves, due, delays = {1: [], 2: []}, {1: [0.0], 2: [0.0]}, {1: 0, 2: 0}, {1: 0, 2: 0}
    now = 0
    for _ in range(200):
        if delayed and rng.random() < 0.1:
            port = rng.choice([1, 2])
            delays[port] = rng.choice([0, 7, 400, 9000])
            outlet.pacer.set_delay(port, delays[port])
        batch = []
        for _ in range(rng.randrange(8)):
            port = rng.choice([1, 2])
            if sum(leave > now for leave in leaves[port]) == 20:
                continue
            leaves[port].append(max(leaves[port][-1], now) + rng.choice([1, 20, 300]))
            batch.append((port, rng.randbytes(rng.randrange(1, 90)), leaves[port][-1]))
            due[port] = max(due[port], leaves[port][-1] + delays[port])
            given[port].append((due[port], batch[-1][1]))
        if batch:
            outlet.hold(*batch, now=now)
        now += rng.randrange(150)
        outlet.at(now)
        for port, frames in given.items():
            sent = [(at, data) for at, by, data in outlet.sent if by == port]
            assert [data for _, data in sent] == [data for _, data in frames[: len(sent)]]
            assert all(at >= early for (at, _), (early, _) in zip(sent, frames, strict=False))
            assert all(early > now - PAUSE_US for early, _ in frames[len(sent) :])


# --- links ----------------------------------------------------------------------------------------


def schedule(*changes, repeat_s=None):
    return LinkSchedule([Change(at, LinkState(*state), port) for at, state, port in changes], repeat_s)


def test_a_schedule_starts_with_the_first_frame_and_changes_the_rate():
    links = Links([1, 2], schedule=schedule((0, (100, 1), None), (2, (10, None), None)))
    pacer = links.pacer(lambda _: None)

    def costs():
        return [int(links.queues.memory[int(links.queues.memory[port])]) for port in (1, 2)]

    fast = costs()[0]
    start = 7_000_000
    for after_us, rate in ((0, 1), (1_999_999, 1), (2_000_000, 10), (3_000_000, 10)):
        links.apply_schedule(pacer, start + after_us)
        assert costs() == pytest.approx([rate * fast] * 2)


def test_rates_may_come_before_the_schedule_s_first():
    late = schedule((5, (10, None), None))
    with pytest.raises(SoftswitchError, match="schedule: port 1 has no rate at first; set mbit at 0 s"):
        Links([1], schedule=late)
    assert Links([1], rates={1: 50}, schedule=late).queues.ports == [1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rates": {9: 1}}, "port rate: port 9 is not there; use one of 1, 2"),
        ({"delays": {9: 1}}, "port delay: port 9 is not there"),
        ({"arrival_delays": {9: 1}}, "arrival delay: port 9 is not there"),
        ({"arrival_delays": {1: 1e9}}, "delay_ms: 1e.09 is out of range"),
        ({"delays": {1: -1}}, "delay_ms: -1 is out of range"),
        ({"schedule": schedule((0, (1, 1), 9))}, "schedule: port 9 is not there"),
    ],
)
def test_mistakes_are_named(given, message):
    with pytest.raises(SoftswitchError, match=message):
        Links([1, 2], **given)


# --- the data plane -------------------------------------------------------------------------------


class Doubler(StubSwitch):
    """A switch that sends every frame back twice, through the queues."""

    def __init__(self, leave_us):
        super().__init__()
        self._leave_us = leave_us

    def process(self, frames, now_us):
        twice = frames.at(np.repeat(np.arange(len(frames)), 2))
        leave = (np.arange(1, len(twice) + 1) * self._leave_us + now_us) << 16
        return Frames(twice.data, twice.length, twice.port, leave.astype(np.uint64))


class Scene:
    """A data plane with ports 1 and 2, hosts behind them, and a clock that stands still."""

    def __init__(self, stack, switch, queues=None, **links):
        self.now_us = 0
        self.ports, self.device = UdpPorts([1, 2]), Device(queues=queues)
        stack.callback(self.ports.close)
        stack.callback(self.device.close)
        made_links = Links([1, 2], **links) if links else None
        plane = DataPlane(self.device, self.ports, links=made_links, clock=lambda: round(self.now_us * 1000))
        self.plane = stack.enter_context(plane)
        self.hosts = {
            number: stack.enter_context(host_at(self.plane.process_batch, at, SIZE))
            for number, at in self.ports.listening.items()
        }
        self.device.install(switch)

    def send(self, packets, port=1):
        received = self.ports.ports[port].counts.received + len(packets)
        self.hosts[port].send(packets)
        while self.ports.ports[port].counts.received < received:
            self.plane.process_batch(1)

    def back_at(self, now_us):
        """Return the first bytes of the packets that are back by a time, which comes now."""
        self.now_us = now_us
        self.plane.process_batch(0)
        burst = self.hosts[1].receive()
        return [] if burst is None else burst.packets[:, 0].tolist()


def filled(count, value):
    return np.full((count, SIZE), value, np.uint8)


@pytest.fixture
def scene():
    """Return a function that makes a `Scene`."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: Scene(stack, *args, **options)


def test_the_data_plane_sends_by_its_clock(scene):
    made = scene(Doubler(leave_us=300), queues=Queues({1: 100}))
    sent = np.arange(3 * SIZE, dtype=np.uint8).reshape(3, SIZE)
    for port in (1, 2):
        made.send(sent, port)
    while made.ports.ports[2].counts.sent < 6:
        made.plane.process_batch(1)
    assert np.array_equal(made.hosts[2].receive().packets, np.repeat(sent, 2, axis=0))
    for turn in range(1, 7):
        assert made.hosts[1].receive() is None
        assert made.back_at(turn * 300 + 1) == [sent[(turn - 1) // 2, 0]]


def test_the_data_plane_delays_by_its_clock_and_schedule(scene):
    made = scene(StubSwitch(), schedule=schedule((0, (None, 2), None), (1, (None, 30), None)))
    for start_ms, delay_ms in ((5000, 2), (5999, 2), (6000, 30), (9000, 30)):
        made.now_us = start_ms * 1000
        made.send(filled(1, 7))
        assert made.back_at((start_ms + delay_ms) * 1000 - 1) == []
        assert made.back_at((start_ms + delay_ms) * 1000) == [7]


def test_arriving_frames_are_late_and_in_order_and_a_stop_drops_those_under_way(scene):
    made = scene(StubSwitch(), delays={1: 3}, arrival_delays={1: 4})
    made.send(filled(3, 5))
    made.now_us = 2000
    made.send(filled(2, 6))
    # At 4 ms the first enter the pipeline, and leave 3 ms later.
    for now_us in (3999, 4000, 6000, 6999):
        assert made.back_at(now_us) == []
    assert made.back_at(7000) == [5, 5, 5]
    assert made.back_at(9000) == [6, 6]
    made.now_us = 20_000
    made.send(filled(100, 7))
    made.plane.stop()
    made.plane.run()
    assert made.ports.ports[1].counts.sent == 5


def test_the_controller_waits_for_no_queue(scene):
    delivered = []
    made = scene(Doubler(leave_us=10**6), queues=Queues({1: 100}))
    made.device.on_packet_in(delivered.extend)
    made.device.inject(b"frame")
    made.plane.process_batch(1)
    assert delivered == [b"frame"] * 2
    assert CPU_PORT not in made.ports.ports


TOML = """
repeat_s = 10
[[change]]
at_s = 0
mbit = 1000
delay_ms = 1
[[change]]
at_s = 4
mbit = 100
[[change]]
at_s = 6.5
delay_ms = 20
port = 2
"""
CSV = "at_s,mbit,delay_ms,port\n0, 1000, 1,\n4,100,,\n6.5,,20,2\n"


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(("name", "text"), [("links.toml", TOML), ("links.csv", CSV)])
def test_what_is_set_holds_until_it_is_set_again(tmp_path, name, text):
    schedule = load_schedule(written(tmp_path, name, text))
    for seconds, one, two in (
        (0, (1000, 1), (1000, 1)),
        (3.999, (1000, 1), (1000, 1)),
        (4, (100, 1), (100, 1)),
        (6.5, (100, 1), (100, 20)),
        (9.9, (100, 1), (100, 20)),
    ):
        assert schedule.at(seconds, 1) == LinkState(*one)
        assert schedule.at(seconds, 2) == LinkState(*two)
    assert schedule.ports == {2}


def test_a_repeated_schedule_starts_again(tmp_path):
    schedule = load_schedule(written(tmp_path, "links.toml", TOML))
    assert schedule.at(10, 2) == schedule.at(0, 2)
    assert schedule.at(37, 2) == schedule.at(7, 2)
    assert [schedule.next_change(at) for at in (0, 3, 4, 6.5, 10, 13, 16.5)] == [4, 4, 6.5, 10, 14, 14, 20]


def test_what_the_first_change_leaves_is_kept_from_the_round_before():
    changes = [Change(1, LinkState(mbit=10)), Change(2, LinkState(delay_ms=5))]
    schedule = LinkSchedule(changes, repeat_s=3)
    assert schedule.at(0.5, 1) == LinkState()
    assert schedule.at(3.5, 1) == LinkState(10, 5)


def test_a_schedule_that_is_played_once_ends(tmp_path):
    schedule = load_schedule(written(tmp_path, "links.csv", CSV))
    assert [schedule.next_change(at) for at in (-1, 0, 5, 6.5, 100)] == [0, 4, 6.5, None, None]
    assert schedule.at(1e6, 1) == LinkState(100, 1)


def test_changes_are_sorted():
    schedule = LinkSchedule([Change(5, LinkState(1)), Change(0, LinkState(2))])
    assert schedule.at(1, 1).mbit == 2
    assert schedule.at(5, 1).mbit == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "", "schedule: has no change; give at least one"),
        ("a.toml", "change = 3", "change: is not a list of tables"),
        ("a.toml", "[[change]]\nmbit = 1", "change 1: has no at_s; say when"),
        ("a.toml", "[[change]]\nat_s = 'x'", "change 1: at_s: 'x' is not a number"),
        ("a.toml", "[[change]]\nat_s = true", "change 1: at_s: True is not a number"),
        ("a.toml", "[[change]]\nat_s = -1", "at_s: -1 is not a time"),
        ("a.toml", "[[change]]\nat_s = 0\nmbit = 0", "change 1: mbit: 0 is out of range; use 0.01 to 1e"),
        ("a.toml", "[[change]]\nat_s = 0\ndelay_ms = 1e9", "change 1: delay_ms: 1e.09 is out of range"),
        ("a.toml", "[[change]]\nat_s = 0\nrate = 1", "change 1: 'rate' is unknown; use at_s, mbit"),
        ("a.toml", "[[change]]\nat_s = 0\nport = 1.5", "change 1: port: 1.5 is not a port"),
        ("a.toml", "repeat_s = 1\n[[change]]\nat_s = 2", "repeat_s: 1 does not reach the last change"),
        ("a.toml", "loop = 1", "'loop' is unknown"),
        ("a.toml", "[[change", "a.toml: "),
        ("a.csv", "at_s,mbit\n0,1,2\n", "change 1: 'None' is unknown"),
        ("a.csv", "at_s,mbit\n0,fast\n", "change 1: mbit: 'fast' is not a number"),
    ],
)
def test_mistakes_are_one_line(tmp_path, name, text, message):
    with pytest.raises(SoftswitchError, match=message) as caught:
        load_schedule(written(tmp_path, name, text))
    assert len(str(caught.value).splitlines()) == 1
    assert name in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SoftswitchError, match=r"schedule: .*none.csv: No such file"):
        load_schedule(tmp_path / "none.csv")

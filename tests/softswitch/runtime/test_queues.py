"""Ports with a rate: departure times, queueing metadata in egress, drops at a full queue."""

import random
import struct
from fractions import Fraction

import pytest

from peelsum.softswitch import Frames, SoftswitchError
from peelsum.softswitch.runtime.queues import QueueCounts, Queues

CLOCK = 1 << 48
METADATA = struct.Struct(">4I")
#: The program replaces 4 bytes before the payload by 28.
ADDED = 28
#: Frames of 100 bytes: 8 us each at 100 Mbit/s.
PAYLOAD = 100 - ADDED


def ask(port=9, group=0, drop=0, payload=PAYLOAD):
    return struct.pack(">HH", group, port << 7 | drop) + bytes(payload)


@pytest.fixture
def switch_with(switch_of):
    """Return a function: `switch_with(queues)` makes a new switch. Tests run once in each mode."""
    return lambda queues: switch_of("queues", queues=queues)


class Sent:
    """Frames of one batch: the metadata of each in egress, and its departure time."""

    def __init__(self, switch, now, *frames):
        out = switch.process(Frames.of([(7, frame) for frame in frames]), now)
        metadata = [METADATA.unpack(frame[:16]) for _, frame in out.pairs()]
        clocks = [(frame[16:22], frame[22:28]) for _, frame in out.pairs()]
        clocks = [tuple(int.from_bytes(one, "big") for one in pair) for pair in clocks]
        self.ports = out.port.tolist()
        self.depths = [depth for depth, _, _, _ in metadata]
        self.burst_depths = [depth for _, depth, _, _ in metadata]
        self.waits = [wait for _, _, wait, _ in metadata]
        assert [at for _, _, _, at in metadata] == [now % CLOCK & 0xFFFF_FFFF] * len(metadata)
        assert clocks == [(now % CLOCK, (now + wait) % CLOCK) for wait in self.waits]
        #: Microseconds since time 0 at which each has left.
        self.left = [int(ticks) / 65536 for ticks in out.leave]


def test_packets_of_a_batch_queue_behind_each_other(switch_with):
    switch = switch_with(Queues({9: 100}))
    sent = Sent(switch, 0, *[ask()] * 4)
    assert sent.depths == [0, 1, 2, 3]
    assert sent.waits == [0, 8, 16, 24]
    assert sent.left == [8, 16, 24, 32]


def test_ports_without_a_rate_keep_nothing_back(switch_with):
    for queues in (Queues({8: 100}, limit=1), None):
        sent = Sent(switch_with(queues), 50, *[ask(port=9)] * 3)
        assert (sent.depths, sent.waits) == ([0, 0, 0], [0, 0, 0])


def test_what_finds_no_room_is_dropped_and_counted(switch_with):
    queues = Queues({9: 100, 8: 100}, limit=3)
    switch = switch_with(queues)
    sent = Sent(switch, 0, *[ask(port=9)] * 5, *[ask(port=8)] * 2)
    assert sent.ports == [9, 9, 9, 8, 8]
    assert Sent(switch, 8, *[ask(port=9)] * 3).depths == [2]
    assert queues.counts() == {
        9: QueueCounts(sent=4, dropped=4, mean=(0 + 1 + 2 + 2) / 4, deepest=3),
        8: QueueCounts(sent=2, dropped=0, mean=0.5, deepest=2),
    }


def test_a_packet_that_egress_drops_takes_none_of_the_port_s_time(switch_with):
    sent = Sent(switch_with(Queues({9: 100})), 0, ask(), ask(drop=1), ask())
    assert (sent.depths, sent.left) == ([0, 1], [8, 16])


def test_every_copy_has_its_own_port_s_queue(switch_with):
    switch = switch_with(Queues({9: 100, 8: 50}))
    switch.groups.set(1, [(8, 0), (9, 0), (9, 1), (5, 0)])
    sent = Sent(switch, 0, ask(group=1), ask(group=1))
    assert sent.ports == [8, 9, 9, 5] * 2
    assert sent.depths == [0, 0, 1, 0, 1, 2, 3, 0]
    assert sent.waits == [0, 0, 8, 0, 16, 16, 24, 0]


@pytest.mark.parametrize("seed", range(2))
def test_any_traffic_leaves_as_an_exact_model_says(switch_with, seed):
    rng = random.Random(seed)
    rates = {port: rng.choice([0.5, 10, 333, 1000, 40_000]) for port in (1, 2, 3)}
    limit = rng.choice([1, 5, 40])
    queues = Queues(rates, limit)
    switch = switch_with(queues)
    waiting = {port: [] for port in rates}
    dropped = dict.fromkeys(rates, 0)
    now = rng.choice([0, CLOCK - 2000])
    for _ in range(25):
        batch = [(rng.choice([1, 2, 3]), rng.randrange(1400)) for _ in range(rng.randrange(1, 60))]
        expected = []
        standing = {port: sum(leave > now for leave in leaves) for port, leaves in waiting.items()}
        for port, payload in batch:
            waiting[port] = [leave for leave in waiting[port] if leave > now]
            if len(waiting[port]) == limit:
                dropped[port] += 1
                continue
            start = waiting[port][-1] if waiting[port] else Fraction(now)
            expected.append((port, len(waiting[port]), start - now))
            waiting[port].append(start + Fraction(8 * (payload + ADDED)) / Fraction(rates[port]))
        sent = Sent(switch, now, *[ask(port, payload=payload) for port, payload in batch])
        assert sent.ports == [port for port, _, _ in expected]
        assert sent.depths == [depth for _, depth, _ in expected]
        assert sent.burst_depths == [standing[port] for port, _, _ in expected]
        # Each packet's time is rounded to 15 ps.
        assert sent.waits == pytest.approx([float(wait) for _, _, wait in expected], abs=1.001)
        now += rng.randrange(2000)
    assert {port: counts.dropped for port, counts in queues.counts().items()} == dropped


@pytest.mark.parametrize(
    ("rates", "limit", "message"),
    [
        ({1: 0.001}, 5, "port rate: 0.001 Mbit/s at port 1 is out of range; use 0.01 to 1e\\+06"),
        ({1: float("nan")}, 5, "port rate: nan Mbit/s at port 1 is out of range"),
        ({512: 10}, 5, "port rate: port 512 is out of range; use 0 to 511"),
        ({1: 10}, 0, "port queue: 0 packets are out of range; use 1 to 524287"),
    ],
)
def test_what_is_out_of_range_is_named(rates, limit, message):
    with pytest.raises(SoftswitchError, match=message):
        Queues(rates, limit)

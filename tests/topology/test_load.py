"""The closed loop of a load, run against the specification, with losses and with wrong sums."""

import itertools
import os
from types import SimpleNamespace

import numpy as np
import pytest
from peelsum_packets import Job

from peelsum.bench.switch import rows
from peelsum.bench.switch.load import ChunkLatencies, Load, WrongSumError, drive, time_slots
from peelsum.spec import SpecSwitch
from peelsum.wire import packet_fields

WORKERS, LANES, WINDOW = 3, 4, 16
SERVER = WORKERS + 1


class SpecHosts:
    """Hosts around the specification; sums for the server wait in `sums`."""

    def __init__(self, *, lose=lambda: False, spoil=False):
        self.switch = SpecSwitch(lanes=LANES, slots=256)
        Job(self.switch, 1, [1, 2, 3], SERVER, generation=5)
        self.switch.set_age_limit(0)
        self.lose, self.spoil = lose, spoil
        self.sums = []
        self.copies = 0

    def send(self, worker, batch):
        port = SERVER if worker < 0 else worker + 1
        for packet in batch:
            for out, payload in self.switch.process(port, packet.tobytes(), 0):
                if out != SERVER:
                    self.copies += 1
                elif not self.lose():
                    self.sums.append(payload)

    def receive_results(self, expected, timeout):
        return expected

    def receive_sums(self, timeout):
        if not self.sums:
            return None
        batch = np.array([list(payload) for payload in self.sums], np.uint8)
        self.sums.clear()
        if self.spoil:
            batch[-1, -1] ^= 1
        return batch


def load_of(window=WINDOW):
    return Load.random(workers=WORKERS, window=window, lanes=LANES, generation=5)


def steps():
    """A clock that moves on by one at every look."""
    return itertools.count().__next__


def test_every_sum_comes_back_and_goes_out_as_a_result():
    hosts = SpecHosts()
    driven = drive(load_of(), hosts, 40, steps())
    assert driven.lost == 0
    assert driven.chunks >= 39 * WINDOW // 2
    assert hosts.copies == WORKERS * driven.chunks


def test_lost_chunks_are_given_up_and_others_follow():
    random = np.random.default_rng(3)
    hosts = SpecHosts(lose=lambda: bool(random.random() < 0.3))
    driven = drive(load_of(), hosts, 200, steps())
    assert driven.lost > 0
    assert driven.chunks > 200
    assert hosts.copies == WORKERS * driven.chunks


def test_a_wrong_sum_is_noticed():
    with pytest.raises(WrongSumError, match=r"chunk \d+: not the sum of the contributions"):
        drive(load_of(), SpecHosts(spoil=True), 10, steps())


def test_sums_are_of_all_workers_lanes_modulo_2_to_the_32():
    load = load_of()
    total = np.zeros((WINDOW, LANES), object)
    for worker in range(WORKERS):
        total += packet_fields(load.contributions(worker), LANES)["lanes"].astype(object)
    assert (total > 0xFFFFFFFF).any()
    assert np.array_equal(packet_fields(load.results(), LANES)["lanes"].astype(object), total % (1 << 32))


def test_slots_are_timed_one_by_one_from_the_last_contribution():
    hosts = SpecHosts()
    timed = time_slots(load_of(), hosts, 60, steps())
    # The clock is looked at before each worker's packet and when the sum has come: one step apart.
    assert timed.lost == 0
    assert timed.sum_us.tolist() == [1e6] * len(timed.sum_us)
    assert len(timed.sum_us) * (WORKERS + 2) <= 60 + WORKERS + 2
    assert hosts.copies == WORKERS * len(timed.sum_us)


@pytest.mark.parametrize("looks", [1, 60, 100 * (WORKERS + 2)])
def test_a_load_follows_timed_slots_without_a_loss(looks):
    """Slots keep the results of the chunks that were timed, and would answer them."""
    hosts = SpecHosts()
    timed = time_slots(load_of(), hosts, looks, steps())
    driven = drive(load_of(), hosts, 40, steps(), used=timed.chunks)
    assert driven.lost == 0
    assert driven.chunks >= 39 * WINDOW // 2


def test_a_slot_whose_sum_is_lost_is_counted_and_not_timed():
    fates = itertools.cycle([False, True])
    hosts = SpecHosts(lose=lambda: next(fates))
    timed = time_slots(load_of(), hosts, 50, steps())
    assert timed.lost == len(timed.sum_us) == 5


class LateHosts(SpecHosts):
    """Hosts whose server gets one packet at a time, and chunk 2's sum only after a silence."""

    def __init__(self):
        super().__init__()
        self.received = []

    def receive_sums(self, timeout):
        if not self.sums or (len(self.received) == 2):
            self.received.append(None)
            return None
        batch = np.array([list(self.sums.pop(0))], np.uint8)
        self.received += packet_fields(batch, LANES)["chunk_id"].tolist()
        return batch


def test_a_late_sum_is_not_taken_for_that_of_the_next_chunk():
    """Else every further chunk would be timed by the sum before it, which waits already."""
    hosts = LateHosts()
    timed = time_slots(load_of(), hosts, 60, steps())
    assert timed.lost == 1
    assert hosts.received[:6] == [0, 1, None, 2, 3, 4]
    assert not hosts.sums  # the last chunk was timed by its own sum


@pytest.mark.parametrize("run", [drive, time_slots])
@pytest.mark.parametrize(("first_within", "ends"), [(0.0, 5), (50.0, 50), (1000.0, 100)])
def test_a_slow_start_is_waited_for_up_to_a_limit(run, first_within, ends):
    """Five seconds asked for, and nothing comes back in the first hundred."""
    clock = itertools.count()
    looks = [0]
    hosts = SpecHosts(lose=lambda: looks[-1] < 100)

    def look():
        looks.append(next(clock))
        return looks[-1]

    done = run(load_of(), hosts, 5, look, first_within=first_within)
    back = len(done.sum_us) if isinstance(done, ChunkLatencies) else done.chunks
    assert (back > 0) == (ends == 100)
    assert ends <= looks[-1] <= ends + 2 * WORKERS


@pytest.mark.parametrize("run", [drive, time_slots])
def test_the_seconds_asked_for_follow_a_slow_start(run):
    """Else a rate would be that of the start, and a median latency that of one chunk."""
    looks = [0]

    def look():
        looks.append(looks[-1] + 1)
        return looks[-1]

    hosts = SpecHosts(lose=lambda: looks[-1] < 100)
    done = run(load_of(), hosts, 50, look, first_within=1000.0)
    assert 145 <= looks[-1] <= 160  # a chunk takes five looks
    if isinstance(done, ChunkLatencies):
        assert len(done.sum_us) >= 10
    else:
        assert 50 <= done.seconds <= 51
        assert done.chunks >= 50 * WINDOW // 2


def test_what_the_first_chunk_waits_for_is_not_measured(monkeypatch):
    """The hosts' loops are compiled or loaded then: a median of half a second was that of one chunk."""
    clock, hosts, sent = [0.0], SpecHosts(), list[int]()

    def receive_results(expected, timeout):
        clock[0] += 0.001 if sent else 1.0
        sent.append(expected)
        return expected

    hosts.receive_results = receive_results
    monkeypatch.setattr(rows, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    figures = rows._measure(load_of(), hosts, 0.5, os.getpid())
    assert figures["slots_timed"] >= 400

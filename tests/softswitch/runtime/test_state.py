"""Registers, counters, groups, batches and the lock, as the control plane and ports use them."""

import threading

import numpy as np
import pytest
from patience import PATIENCE_S

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.errors import InvalidEntry
from peelsum.softswitch.runtime.state import FairLock


@pytest.fixture
def switch(program_of):
    return Switch(program_of("router"), "python")


def test_registers_read_back_and_check_their_bounds(switch):
    register = switch.registers["RouterIngress.last_source"]
    register.write(511, 2**48 - 1)
    assert (register.read(511), register.size, register.bits) == (2**48 - 1, 512, 48)
    for index, value, message in ((512, 0, "index 512"), (-1, 0, "index -1"), (0, 2**48, "does not fit 48")):
        with pytest.raises(InvalidEntry, match=message):
            register.write(index, value)
    with pytest.raises(InvalidEntry, match="index 512"):
        register.read(512)


@pytest.mark.parametrize(
    ("group", "replicas", "message"),
    [
        (0, [], "multicast group: 0"),
        (65536, [], "multicast group: 65536"),
        (1, [(1 << 16, 0)], "multicast group 1: .* does not fit 16 bits"),
        (1, [(0, 1 << 16)], "multicast group 1: .* does not fit 16 bits"),
        (1, [(0, -1)], "multicast group 1: .* does not fit 16 bits"),
    ],
)
def test_groups_out_of_range_are_refused(switch, group, replicas, message):
    with pytest.raises(InvalidEntry, match=message):
        switch.groups.set(group, replicas)


def test_groups_survive_any_number_of_changes(switch_of):
    """Replaced groups leave gaps in the groups' memory; it is packed when it is full."""
    switch = switch_of("replicate")
    frame = b"\x01\x00\x07" + bytes(6)
    for turn in range(300):
        ports = [(turn + port) % 500 for port in range(turn % 9)]
        switch.groups.set(7, [(port, 0) for port in ports])
        switch.groups.set(turn % 50 + 100, [(1, 1)] * 5)
        assert [port for port, _ in switch.process(Frames.of([(0, frame)]), 0).pairs()] == ports


def test_rows_may_be_views_of_anything(switch_of):
    """Frames may be slices of larger arrays, with an odd stride."""
    switch = switch_of("replicate")
    frame = b"\x00\x00\x00\x02\x80" + bytes(4) + b"odd"
    whole = np.zeros((8, 64), np.uint8)
    whole[::2, 5:17] = np.frombuffer(frame, np.uint8)
    frames = Frames(whole[::2, 5:20], np.full(8, 12, np.int32)[::2], np.zeros(4, np.int32))
    assert [out[-3:] for _, out in switch.process(frames, 0).pairs()] == [b"odd"] * 4


@pytest.mark.parametrize(
    ("rows", "lengths", "message"),
    [
        (2, [3, 11], "lengths 3..11"),
        (2, [-1, 3], "lengths -1..3"),
        (3, [1, 2], "pass a row, a length and a port"),
    ],
)
def test_batches_that_do_not_fit_together_are_refused(switch, rows, lengths, message):
    frames = Frames(np.zeros((rows, 10), np.uint8), np.array(lengths, np.int32), np.zeros(2, np.int32))
    with pytest.raises(InvalidEntry, match=message):
        switch.process(frames, 0)


def test_a_waiting_thread_comes_before_the_last_holder():
    lock, order, waits = FairLock(), [], threading.Event()
    lock.on_wait = waits.set

    def packets():
        with lock:
            order.append("packets")

    with lock:
        waiting = threading.Thread(target=packets)
        waiting.start()
        assert waits.wait(PATIENCE_S)
    for _ in range(3):
        with lock:
            order.append("changes")
    waiting.join(PATIENCE_S)
    assert order == ["packets", "changes", "changes", "changes"]


def test_its_holder_may_take_it_again_while_another_waits():
    lock, taken, waits = FairLock(), threading.Event(), threading.Event()
    lock.on_wait = waits.set

    def other():
        with lock:
            taken.set()

    with lock:
        waiting = threading.Thread(target=other)
        waiting.start()
        assert waits.wait(PATIENCE_S)
        with lock:
            assert not taken.is_set()
        assert not taken.is_set()
    assert taken.wait(PATIENCE_S)
    waiting.join(PATIENCE_S)

"""The room for copies grows and shrinks with the largest multicast group."""

import random

import pytest

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.errors import InvalidEntry, NoSuchEntry


def test_room_follows_the_largest_group(program_of):
    groups, rng, model = Switch(program_of("replicate"), "python").groups, random.Random(4), {}
    for _ in range(300):
        number = rng.randint(1, 8)
        if rng.random() < 0.4:
            if model.pop(number, None) is None:
                with pytest.raises(NoSuchEntry):
                    groups.delete(number)
            else:
                groups.delete(number)
        else:
            model[number] = [(port, 0) for port in range(rng.randrange(7))]
            groups.set(number, model[number])
        assert groups.most_copies == max([1, *map(len, model.values())])
        assert groups.ids() == sorted(model)
        assert [number in groups for number in range(10)] == [number in model for number in range(10)]


def test_a_group_that_went_makes_no_copies(switch_of):
    switch = switch_of("replicate")
    frames = Frames.of([(0, b"\x01\x00\x07" + bytes(6))])
    switch.groups.set(7, [(1, 0), (2, 0)])
    assert len(switch.process(frames, 0)) == 2
    switch.groups.delete(7)
    assert len(switch.process(frames, 0)) == 0


def test_the_greatest_port_and_instance_fit(program_of):
    groups = Switch(program_of("replicate"), "python").groups
    groups.set(1, [(65535, 65535)])
    for replica in ((65536, 0), (0, 65536)):
        with pytest.raises(InvalidEntry, match="does not fit 16 bits"):
            groups.set(1, [replica])
    assert groups.get(1) == ((65535, 65535),)

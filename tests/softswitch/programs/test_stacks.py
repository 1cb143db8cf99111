"""Header stacks compared with a list of labels in Python, in both modes."""

import random
import struct

import pytest
from program_frames import changed_switch
from softswitch_frames import send

DEPTH = 4
OVERFLOW, SHORT = b"StOf", b"PTsh"
TOLD, POP1, READ, WRITE, IS_THERE = 1, 5, 10, 11, 22


def ask(op, index=0, group=0, seen=0):
    return struct.pack(">BBHI", op, index, group, seen)


def label(value, cost=0, bottom=0):
    return struct.pack(">HB", value, cost << 1 | bottom)


class Stack:
    """Apply the program's operation to labels: (value, cost, bottom), or None for an invalid element."""

    def __init__(self, labels):
        self.labels = [*labels, *[None] * (DEPTH - len(labels))]
        self.copy = [None] * DEPTH

    def push(self, count):
        self.labels = ([None] * count + self.labels)[:DEPTH]

    def pop(self, count):
        self.labels = (self.labels + [None] * count)[count : count + DEPTH]

    def apply(self, op, index):
        match op:
            case 2:
                self.push(1)
                self.labels[0] = (0xAAAA, 0, 0)
            case 3:
                self.push(2)
                self.labels[1] = (0xBBBB, 5, 1)
            case 4:
                self.push(4)
            case 5 | 6 | 7:
                self.pop({5: 1, 6: 2, 7: 4}[op])
            case 8:
                self.copy = list(self.labels)
                self.pop(1)
            case 9:
                self.labels[:2] = self.labels[1::-1]
            case 11:
                _, cost, bottom = self.labels[index]
                self.labels[index] = (0xBEEF, cost + 1 & 127, bottom)
            case 12:
                self.labels[1] = None
            case 18:
                _, cost, bottom = self.labels[index] or (0, 0, 0)
                self.labels[index] = (0xDDDD, cost, bottom)
            case 19:
                self.labels[index] = None
            case 20:
                self.labels[index] = self.labels[0]
            case 21:
                self.labels[0] = self.labels[index]

    def seen(self, op, index, labels):
        if op == TOLD:
            return (len(labels) - 1) << 16 | labels[-1][0]
        if op == IS_THERE:
            return int(index < len(labels))
        return labels[index][0] if op == READ else 0

    def bytes(self):
        return b"".join(label(*part) for part in (*self.labels, *self.copy) if part)


def labels_of(rng, count):
    values = [(rng.getrandbits(16), rng.choice([0, 1, 99, 104, 127]), 0) for _ in range(count)]
    value, cost, _ = values[-1]
    return [*values[:-1], (value, cost, 1)]


def cases(count):
    rng = random.Random(11)
    for _ in range(count):
        labels = labels_of(rng, rng.randint(1, DEPTH))
        op = rng.choice([*range(1, 13), *range(18, 23)])
        index = rng.randrange(len(labels) if op < 18 else DEPTH)
        yield op, index, labels, rng.randbytes(rng.choice([0, 1, 9]))


def test_operations_are_those_of_a_list(switch_of):
    frames, expected = [], []
    for op, index, labels, tail in cases(400):
        stack = Stack(labels)
        stack.apply(op, index)
        frames.append(ask(op, index) + b"".join(label(*part) for part in labels) + tail)
        expected.append((3, ask(op, index, seen=stack.seen(op, index, labels)) + stack.bytes() + tail))
    assert send(switch_of("stack"), *frames) == expected


def told(last, value):
    return ask(TOLD, seen=last << 16 | value)


FOUR = b"".join(label(n, 1) for n in range(3))
#: A frame's request, the rest of it, the answer to the request, and the rest that leaves.
PARSED = {
    "without labels": (ask(0), b"tail", ask(0), b"tail"),
    "what does not fit the stack stays in the packet": (
        ask(TOLD),
        FOUR + label(3, 1) + label(9, 1, 1) + b"tail",
        ask(TOLD, seen=int.from_bytes(OVERFLOW, "big")),
        FOUR + label(3, 1) + label(9, 1, 1) + b"tail",
    ),
    "a full stack is not an error": (ask(TOLD), FOUR + label(3, 1, 1), told(3, 3), FOUR + label(3, 1, 1)),
    # Labels parsed before the limit are popped; unparsed ones follow.
    "the packet ends within a label": (
        ask(POP1),
        label(1, 1) + label(2, 1)[:2],
        ask(POP1, seen=int.from_bytes(SHORT, "big")),
        label(2, 1)[:2],
    ),
    # A bottom of cost 100 is followed by a byte that is skipped, then by more labels.
    "a loop through another state": (
        ask(TOLD),
        label(1, 0) + label(2, 100, 1) + b"\xee" + label(3, 4, 1) + b"tail",
        told(2, 3),
        label(1, 0) + label(2, 100, 1) + label(3, 4, 1) + b"tail",
    ),
    "a copy in the parser goes on where its source was": (
        ask(TOLD),
        label(1) + label(2, 103, 1) + label(3, 1) + b"tail",
        told(2, 2),
        (label(1) + label(2, 103, 1)) * 2 + label(3, 1) + b"tail",
    ),
}


@pytest.mark.parametrize(("request_", "rest", "answer", "left"), PARSED.values(), ids=PARSED)
def test_what_the_parser_takes_and_tells(switch_of, request_, rest, answer, left):
    assert send(switch_of("stack"), request_ + rest) == [(3, answer + left)]


@pytest.mark.parametrize("op", [8, 15])
def test_packets_grow_by_a_whole_stack(switch_of, op):
    """Rows of a batch have room for the growth: none overlaps the next one."""
    switch = switch_of("stack")
    switch.groups.set(6, [(2, 2)])
    fours = [b"".join(label(n + 4 * k, 1, n == 3) for n in range(4)) for k in range(9)]
    frames = [ask(op, group=6 if op > 12 else 0) + four for four in fours]
    expected = [frame + frame[8:] if op == 15 else frame[:8] + frame[11:] + frame[8:] for frame in frames]
    assert [frame for _, frame in send(switch, *frames)] == expected


def test_where_an_index_is_past_the_end_nothing_is_stored_and_zero_is_read(switch_of):
    body = b"".join(label(n + 1, 1, n == 3) for n in range(4))
    switch = switch_of("stack")
    for op in (WRITE, READ, 18, 19, 20, 21, IS_THERE):
        for index in (4, 255):
            left = ask(op, index, seen=0 if op == READ else 5) + body
            assert send(switch, ask(op, index, seen=5) + body) == [(3, left)]


@pytest.mark.parametrize(
    ("op", "changed"),
    [
        (13, lambda labels, rid: label(rid) + labels),
        (14, lambda labels, rid: labels[3:] if rid == 2 else labels),
        (15, lambda labels, rid: labels * 2 if rid == 2 else labels),
        (17, lambda labels, rid: b"\xca\xfe" + labels[2:] if rid == 2 else labels),
        (16, lambda labels, rid: labels[3:6] + labels[3:] if rid == 2 else labels),
    ],
)
def test_copies_do_not_touch_each_others_stacks(switch_of, op, changed):
    """Every copy of a multicast packet starts from ingress's elements and their number."""
    switch = switch_of("stack")
    switch.groups.set(6, [(1, 1), (2, 2), (3, 3)])
    labels = label(1, 1) + label(2, 1) + label(3, 1, 1)
    got = send(switch, ask(op, group=6) + labels + b"tail")
    assert got == [(rid, ask(op, group=6) + changed(labels, rid) + b"tail") for rid in (1, 2, 3)]


def test_a_loop_that_takes_nothing_off_the_packet_ends():
    def endless(document):
        (more,) = (s for s in document["parsers"][0]["parse_states"] if s["name"] == "parse_more")
        more["parser_ops"], more["transitions"][0]["next_state"] = [], "parse_more"

    frame = ask(TOLD) + label(1, 100, 1) + b"tail"
    assert send(changed_switch("stack", endless), frame) == [(3, told(0, 1) + frame[8:])]

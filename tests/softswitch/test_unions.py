"""Header unions in the softswitch, compiled and in plain Python: at most one of their headers is valid."""

import struct

import pytest

from peelsum.softswitch import Frames

SHORT, LONG = b"\x5a\x5b", b"\x61\x62\x63\x64"
NEW_SHORT, NEW_LONG = b"\x11\x11", b"\x22" * 4
#: Bits of the answer: which headers and unions the program found valid.
NOTHING, IN_U, IN_SHORT, IN_LONG, IN_W = 0, 1, 2, 4, 8


def ask(op, kind, group=0):
    """Return the request for an operation, with the short header (kind 1), the long one (2) or both (3)."""
    return struct.pack(">BBH", op, kind, group)


def send(switch, frame):
    return switch.process(Frames.of([(3, frame)]), 0).pairs()


@pytest.mark.parametrize(
    ("op", "kind", "body", "valid", "left"),
    [
        (0, 0, b"", NOTHING, b""),
        (0, 1, SHORT, IN_U | IN_SHORT, SHORT),
        (0, 2, LONG, IN_U | IN_LONG, LONG),
        # Extracting a second header of the union invalidates the first one.
        (0, 3, SHORT + LONG, IN_U | IN_LONG, LONG),
        (1, 2, LONG, IN_U | IN_SHORT, NEW_SHORT),
        (2, 1, SHORT, IN_U | IN_LONG, NEW_LONG),
        (1, 0, b"", IN_U | IN_SHORT, NEW_SHORT),
        (3, 1, SHORT, IN_W, SHORT),
        (3, 2, LONG, IN_U | IN_LONG | IN_W, LONG + LONG),
        (3, 0, b"", NOTHING, b""),
        # Copying one header into the union invalidates the other one.
        (4, 1, SHORT, IN_U | IN_SHORT | IN_W, SHORT + SHORT),
        (5, 2, LONG, NOTHING, b""),
        (5, 1, SHORT, IN_U | IN_SHORT, SHORT),
    ],
)
def test_one_header_at_most_is_valid(switch_of, op, kind, body, valid, left):
    got = send(switch_of("unions"), ask(op, kind) + body + b"tail")
    assert got == [(3, ask(op, kind) + bytes([valid, 0]) + left + b"tail")]


def test_copies_do_not_touch_each_others_unions(switch_of):
    switch = switch_of("unions")
    switch.groups.set(5, [(1, 1), (2, 2)])
    head = ask(6, 1, 5) + bytes([IN_U | IN_SHORT, 0])
    expected = [(1, head + b"\x33" * 4 + b"tail"), (2, head + SHORT + b"tail")]
    assert send(switch, ask(6, 1, 5) + SHORT + b"tail") == expected

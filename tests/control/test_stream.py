"""A controller's stream to a switch that says other things first, or loses what it is asked."""

from types import SimpleNamespace

import pytest
from finsy.proto import U128, p4r, rpc_code, rpc_status
from frames import payload_of
from patience import PATIENCE_S

from peelsum.control import resets, v1model
from peelsum.control.errors import NotPrimaryError
from peelsum.control.stream import Stream
from peelsum.wire import unpack
from peelsum.wire.clock import FREED_TICKS

LANES = 32


class Says:
    """A switch that answers the first bid with all of `messages`."""

    def __init__(self, *messages):
        self.messages = messages

    def StreamChannel(self, requests):  # noqa: N802 - the name of the call
        next(requests)
        yield from self.messages


def test_a_packet_before_the_answer_is_not_taken_for_it():
    packet = p4r.StreamMessageResponse(packet=p4r.PacketIn(payload=b"a late acknowledgement"))
    lost = p4r.MasterArbitrationUpdate(
        election_id=U128.encode(9), status=rpc_status.Status(code=rpc_code.ALREADY_EXISTS)
    )
    stream = Stream(Says(packet, p4r.StreamMessageResponse(arbitration=lost)), "s1:9559", 1)
    with pytest.raises(NotPrimaryError, match=r"another controller is the primary .* \(election id 9\)"):
        stream.become_primary(1, PATIENCE_S)


class Loses:
    """A stream that loses the first packet of one slot, and brings back all others."""

    def __init__(self, slot):
        self._slot, self.sent, self._back = slot, [], []

    def send_packet(self, frame):
        self.sent.append(frame)
        if slots_of([frame]) != [self._slot] or self.sent.count(frame) > 1:
            self._back.append(frame)

    def late(self, slot):
        """Bring back another frame for a slot that was reset."""
        self._back.append(dict(zip(slots_of(self.sent), self.sent, strict=True))[slot])

    def next_packet(self, deadline):
        return self._back.pop(0) if self._back else None


def slots_of(frames):
    """Return the slots that RESET frames free."""
    return [int(unpack(payload_of(frame), LANES)[0]["chunk_id"]) for frame in frames]


def test_only_a_reset_that_was_lost_is_sent_again():
    stream = Loses(5)
    resets.reset(SimpleNamespace(stream=stream, address="s1:9559"), [4, 5, 6], LANES)
    assert slots_of(stream.sent) == [4, 5, 6, 5]


def test_a_late_acknowledgement_of_an_earlier_reset_does_not_count():
    """The second request for slot 5 is lost; what then comes belongs to the first."""
    session = SimpleNamespace(stream=Loses(5), address="s1:9559")
    resets.reset(session, [5], LANES)
    session.stream.late(5)
    session.stream.late(5)
    resets.reset(session, [5], LANES)
    assert slots_of(session.stream.sent) == [5, 5, 5, 5]


@pytest.mark.parametrize("probe", [1000, 0xFFFFFFF0])
def test_stamps_are_stale_from_half_the_time_of_a_freed_slot(monkeypatch, probe):
    """And if they lie further ahead than a slot in use can have them, an hour allowed for reading."""
    first, last = probe - FREED_TICKS // 2, probe + FREED_TICKS + (1 << 26)
    stamps = dict(enumerate(stamp & 0xFFFFFFFF for stamp in (probe, first, first - 1, last, last + 1)))
    monkeypatch.setattr(v1model, "slot_owners", lambda session: {})
    monkeypatch.setattr(v1model, "_register", lambda session, name: stamps)
    monkeypatch.setattr(v1model, "reset", lambda *_: None)
    assert v1model.stale_slots(None, 5, LANES) == [2, 4]

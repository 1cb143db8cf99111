"""RESET frames, and a controller's stream to a switch that says other things first, or loses frames."""

import itertools
from types import SimpleNamespace

import pytest
from finsy.proto import U128, p4r, rpc_code, rpc_status
from frames import frame, payload_of
from patience import PATIENCE_S

from peelsum.control import session
from peelsum.control.errors import NotPrimaryError, UnsupportedError
from peelsum.control.stream import StreamChannel
from peelsum.control.v1model import acknowledged_slot, reset_frames, reset_slots
from peelsum.wire import unpack

LANES = 32


class Says:
    """A switch that answers the first bid with all of `messages`."""

    def __init__(self, *messages):
        self.messages = messages

    def StreamChannel(self, requests, metadata):  # noqa: N802 - the name of the call
        next(requests)
        yield from self.messages


def test_a_packet_before_the_answer_is_not_taken_for_it():
    packet = p4r.StreamMessageResponse(packet=p4r.PacketIn(payload=b"a late acknowledgement"))
    status = rpc_status.Status(code=rpc_code.ALREADY_EXISTS)
    lost = p4r.MasterArbitrationUpdate(election_id=U128.encode(9), status=status)
    stream = StreamChannel(Says(packet, p4r.StreamMessageResponse(arbitration=lost)), "s1:9559", 1)
    with pytest.raises(NotPrimaryError, match=r"another controller is the primary .* \(election id 9\)"):
        stream.become_primary(1, PATIENCE_S)


def test_a_switch_that_ignores_roles_is_not_taken_for_one_that_has_them():
    """BMv2 would take any other bid than 0 for one in its only election."""
    primary = p4r.MasterArbitrationUpdate(status=rpc_status.Status(code=rpc_code.OK))
    says = Says(p4r.StreamMessageResponse(arbitration=primary))
    stream = StreamChannel(says, "s1:9559", 1, "peelsum job 1")
    with pytest.raises(UnsupportedError, match="s1:9559 has no roles"):
        stream.acquire_lease(PATIENCE_S)


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
    reset_slots(SimpleNamespace(stream=stream, address="s1:9559"), [4, 5, 6], LANES)
    assert slots_of(stream.sent) == [4, 5, 6, 5]


def test_a_late_acknowledgement_of_an_earlier_reset_does_not_count():
    """The second request for slot 5 is lost; what then comes belongs to the first."""
    session = SimpleNamespace(stream=Loses(5), address="s1:9559")
    reset_slots(session, [5], LANES)
    session.stream.late(5)
    session.stream.late(5)
    reset_slots(session, [5], LANES)
    assert slots_of(session.stream.sent) == [5, 5, 5, 5]


def test_only_a_reset_that_came_back_acknowledges():
    (raw,) = reset_frames([9], lanes=4)
    assert acknowledged_slot(raw, 4) == 9
    assert acknowledged_slot(raw + bytes(20), 4) == 9  # padded by an Ethernet
    for other in (raw[:-1], raw[:20], b"", frame(bytes(32)), bytes(200)):
        assert acknowledged_slot(other, 4) is None


@pytest.mark.parametrize("request_", [0, 1, 0xFFFFFFFF])
def test_an_acknowledgement_of_another_request_is_none(request_):
    (raw,) = reset_frames([9], lanes=4, request=request_)
    found = [acknowledged_slot(raw, 4, other) for other in (0, 1, 0xFFFFFFFF)]
    assert found == [9 if other == request_ else None for other in (0, 1, 0xFFFFFFFF)]


def test_a_bid_that_waits_names_the_holder_once(monkeypatch, caplog):
    monkeypatch.setattr(session, "monotonic", itertools.count(0.0, 0.5).__next__)
    monkeypatch.setattr(session, "_BID_INTERVAL_S", 0.0)
    bids = iter(range(4))

    def bid():
        if next(bids) < 3:
            raise NotPrimaryError("switch: another controller is the primary of h:1; let it finish")
        return "stream"

    assert session.elected(bid, 9.0) == "stream"
    (message,) = caplog.messages
    assert message == "switch: another controller is the primary of h:1; waiting up to 9 s for its end"

"""A controller's stream to a switch that says other things first, or loses what it is asked."""

from types import SimpleNamespace

import pytest
from finsy.proto import U128, p4r, rpc_code, rpc_status
from patience import PATIENCE_S

from peelsum.control import NotPrimaryError, resets
from peelsum.control.frames import reset_frames
from peelsum.control.stream import Stream

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
        (self.lost,) = reset_frames([slot], LANES)
        self.sent, self._back = [], []

    def send_packet(self, frame):
        self.sent.append(frame)
        if frame != self.lost or self.sent.count(frame) > 1:
            self._back.append(frame)

    def next_packet(self, deadline):
        return self._back.pop(0) if self._back else None


def test_only_a_reset_that_was_lost_is_sent_again():
    stream = Loses(5)
    resets.reset(SimpleNamespace(stream=stream, address="s1:9559"), [4, 5, 6], LANES)
    assert stream.sent == reset_frames([4, 5, 6, 5], LANES)

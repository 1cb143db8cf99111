import pytest
from frames import frame, payload_of

from peelsum.control.resets import acknowledged_slot, reset_frames
from peelsum.wire import Kind, unpack


def test_a_reset_is_a_well_formed_frame():
    first, second = reset_frames([7, 4095], lanes=4)
    for raw, slot in ((first, 7), (second, 4095)):
        (packet,) = unpack(payload_of(raw), 4)
        assert (packet["kind"], packet["chunk_id"], packet["job_id"]) == (Kind.RESET, slot, 0)


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

"""Controller headers, and priorities by P4Info, without a server."""

import pytest
from finsy.proto import p4i, p4r

from peelsum.softswitch.p4runtime.info import FieldInfo, PipelineInfo, to_bytes, to_frame, to_packet_in

HEADER = (FieldInfo(1, "a", 9), FieldInfo(2, "b", 3), FieldInfo(5, "c", 12))
INFO = PipelineInfo({}, {}, {}, {}, {"packet_out": HEADER, "packet_in": HEADER})


def test_header_fields_lie_side_by_side():
    packet = p4r.PacketOut(payload=b"payload")
    for number, value in ((5, 0xABC), (1, 0x101), (2, 5)):
        packet.metadata.add(metadata_id=number, value=to_bytes(value))
    frame = to_frame(packet, INFO)
    assert frame == ((0x101 << 3 | 5) << 12 | 0xABC).to_bytes(3, "big") + b"payload"
    back = to_packet_in(frame, INFO)
    values = [(item.metadata_id, item.value) for item in back.metadata]
    assert (values, back.payload) == ([(1, b"\1\1"), (2, b"\5"), (5, b"\x0a\xbc")], b"payload")


def test_a_frame_shorter_than_its_header_is_filled_up_with_zeros():
    back = to_packet_in(b"\x80", INFO)
    assert ([item.value for item in back.metadata], back.payload) == ([b"\1\0", b"\0", b"\0"], b"")


@pytest.mark.parametrize("kind", [p4i.MatchField.TERNARY, p4i.MatchField.RANGE, p4i.MatchField.OPTIONAL])
def test_every_kind_that_overlaps_needs_a_priority(schema, kind):
    p4info = p4i.P4Info()
    p4info.CopyFrom(schema.p4info)
    del p4info.tables[1:]
    del p4info.tables[0].match_fields[1:]
    p4info.tables[0].match_fields[0].match_type = kind
    (table,) = PipelineInfo.of(p4info).tables.values()
    assert table.needs_priority

"""P4Info, numbers, controller headers and a stream's queue, without a server."""

import grpc
import pytest
from finsy.proto import p4i, p4r

from peelsum.softswitch.p4runtime.info import (
    FieldInfo,
    PipelineInfo,
    to_bytes,
    to_frame,
    to_int,
    to_packet_in,
)
from peelsum.softswitch.p4runtime.status import RequestError
from peelsum.softswitch.p4runtime.stream import ControllerStream

# Values


@pytest.mark.parametrize(
    ("number", "octets"),
    [
        (0, b"\0"),
        (1, b"\1"),
        (255, b"\xff"),
        (256, b"\1\0"),
        (65535, b"\xff\xff"),
        (1 << 64, b"\1" + bytes(8)),
    ],
)
def test_numbers_are_written_in_their_shortest_form(number, octets):
    assert to_bytes(number) == octets
    assert to_int(b"\0\0" + octets, 65, "it") == number


def test_a_value_fits_its_width_to_the_bit():
    assert to_int(b"\x01\xff", 9, "it") == 511
    with pytest.raises(RequestError, match="0x200 does not fit 9 bits"):
        to_int(b"\x02\x00", 9, "it")


# Packets


HEADER = (FieldInfo(1, "a", 9), FieldInfo(2, "b", 3), FieldInfo(5, "c", 12))
INFO = PipelineInfo({}, {}, {}, {}, {"packet_out": HEADER, "packet_in": HEADER})


def test_header_fields_lie_side_by_side():
    packet = p4r.PacketOut(payload=b"payload")
    for number, value in ((5, 0xABC), (1, 0x101), (2, 5)):
        packet.metadata.add(metadata_id=number, value=to_bytes(value))
    frame = to_frame(packet, INFO)
    assert frame == ((0x101 << 3 | 5) << 12 | 0xABC).to_bytes(3, "big") + b"payload"
    back = to_packet_in(frame, INFO)
    assert [(item.metadata_id, item.value) for item in back.metadata] == [
        (1, b"\1\1"),
        (2, b"\5"),
        (5, b"\x0a\xbc"),
    ]
    assert back.payload == b"payload"


def test_a_frame_shorter_than_its_header_is_filled_up_with_zeros():
    back = to_packet_in(b"\x80", INFO)
    assert ([item.value for item in back.metadata], back.payload) == ([b"\1\0", b"\0", b"\0"], b"")


def test_the_longest_payload_is_a_packets():
    assert len(to_frame(p4r.PacketOut(payload=bytes(65535)), INFO)) == 65538
    with pytest.raises(RequestError, match="65536 bytes are too many; send up to 65535"):
        to_frame(p4r.PacketOut(payload=bytes(65536)), INFO)


def test_a_metadata_field_given_twice_is_refused():
    packet = p4r.PacketOut(payload=b"x")
    for _ in range(2):
        packet.metadata.add(metadata_id=1, value=b"\1")
    with pytest.raises(RequestError, match="given twice"):
        to_frame(packet, INFO)


def test_a_stream_ends_with_the_error_it_was_given_after_what_was_queued():
    stream = ControllerStream()
    stream.send(p4r.StreamMessageResponse())
    stream.end(RequestError(grpc.StatusCode.NOT_FOUND, "gone"))
    responses = stream.responses()
    next(responses)
    with pytest.raises(RequestError, match="gone"):
        next(responses)


def test_what_a_table_may_do_is_read_from_p4info(schema):
    info = PipelineInfo.of(schema.p4info)
    table = next(table for table in info.tables.values() if table.name == "MatchEverything.exact_match")
    names = {number: action.name.rpartition(".")[2] for number, action in info.actions.items()}
    assert {names[n] for n in table.entry_actions} == {"forward", "flood", "to_cpu", "drop"}
    assert {names[n] for n in table.default_actions} == {"forward", "flood", "to_cpu", "give_up"}
    by_name = {table.name.rpartition(".")[2]: table for table in info.tables.values()}
    assert {name for name, table in by_name.items() if table.needs_priority} == {"filter"}
    assert {name for name, table in by_name.items() if table.is_const} == {"fixed"}
    assert {name for name, table in by_name.items() if table.const_default} == {"fixed"}
    assert {name: table.direct_counter for name, table in by_name.items() if table.direct_counter} == {
        "route": "MatchEverything.routed"
    }


@pytest.mark.parametrize("kind", [p4i.MatchField.TERNARY, p4i.MatchField.RANGE, p4i.MatchField.OPTIONAL])
def test_every_kind_that_overlaps_needs_a_priority(schema, kind):
    p4info = p4i.P4Info()
    p4info.CopyFrom(schema.p4info)
    del p4info.tables[1:]
    del p4info.tables[0].match_fields[1:]
    p4info.tables[0].match_fields[0].match_type = kind
    (table,) = PipelineInfo.of(p4info).tables.values()
    assert table.needs_priority

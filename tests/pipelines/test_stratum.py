"""The device config for Stratum, read by the field numbers of bf.proto."""

from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from peelsum.pipelines.stratum import Profile, pipeline_config

PROFILE = Profile("pipe", b'{"tables": []}', bytes(range(256)))
CONFIG = pipeline_config("peelsum", b'{"schema_version": "1.0.0"}', [PROFILE])
LENGTH_DELIMITED = 2


def by_number(data):
    """Return (field number, wire type, value) of each field, as protobuf reads them without a declaration."""
    empty = Empty()
    empty.ParseFromString(data)
    return [(field.field_number, field.wire_type, field.data) for field in UnknownFieldSet(empty)]


def test_the_fields_have_the_numbers_of_bf_proto():
    name, bf_rt, (number, kind, profile) = by_number(CONFIG)
    assert name == (1, LENGTH_DELIMITED, b"peelsum")
    assert bf_rt == (2, LENGTH_DELIMITED, b'{"schema_version": "1.0.0"}')
    assert (number, kind) == (3, LENGTH_DELIMITED)
    assert by_number(profile) == [
        (1, LENGTH_DELIMITED, b"pipe"),
        (2, LENGTH_DELIMITED, PROFILE.context),
        (3, LENGTH_DELIMITED, PROFILE.binary),
        (4, LENGTH_DELIMITED, bytes([0, 1, 2, 3])),  # repeated numbers are packed
    ]

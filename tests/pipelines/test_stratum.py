"""The device config for Stratum, read by field number and by a second declaration of the message."""

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message_factory import GetMessageClass
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


def declared():
    """Return BfPipelineConfig with bf.proto's names and numbers: (name, number, type, label)."""
    file = FileDescriptorProto(name="bf.proto", package="stratum.hal.barefoot", syntax="proto3")
    config = file.message_type.add(name="BfPipelineConfig")
    profile = config.nested_type.add(name="Profile")
    for message, fields in (
        (
            profile,
            [
                ("profile_name", 1, 9, 1),
                ("context", 2, 12, 1),
                ("binary", 3, 12, 1),
                ("pipe_scope", 4, 13, 3),
            ],
        ),
        (config, [("p4_name", 1, 9, 1), ("bfruntime_info", 2, 12, 1), ("profiles", 3, 11, 3)]),
    ):
        for name, number, kind, label in fields:
            message.field.add(name=name, number=number, type=kind, label=label)
    config.field[2].type_name = ".stratum.hal.barefoot.BfPipelineConfig.Profile"
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("stratum.hal.barefoot.BfPipelineConfig"))


def test_a_reader_with_bf_protos_declaration_gets_the_same_fields_and_bytes():
    config = declared()()
    config.ParseFromString(CONFIG)
    assert config.p4_name == "peelsum"
    assert config.bfruntime_info == b'{"schema_version": "1.0.0"}'
    (profile,) = config.profiles
    assert (profile.profile_name, profile.context, profile.binary) == PROFILE
    assert list(profile.pipe_scope) == [0, 1, 2, 3]
    assert config.SerializeToString(deterministic=True) == CONFIG

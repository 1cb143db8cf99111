"""The traces for ASTRA-sim are what Chakra's published schema says, read by protobuf's own parser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import peelsum
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from peelsum.simulation import SimulationError
from peelsum.simulation.astra_sim import chakra_trace, write_costs

#: Fields of schema/protobuf/et_def.proto (github.com/mlcommons/chakra, commit 21585d8f) that traces use or
#: readers need: message, field, number, type.
FIELDS = (
    ("AttributeProto", "name", 1, "string"),
    ("AttributeProto", "int64_val", 9, "int64"),
    ("AttributeProto", "string_val", 29, "string"),
    ("GlobalMetadata", "version", 1, "string"),
    ("GlobalMetadata", "attr", 2, "AttributeProto"),
    ("Node", "id", 1, "uint64"),
    ("Node", "name", 2, "string"),
    ("Node", "type", 3, "NodeType"),
    ("Node", "ctrl_deps", 4, "uint64s"),
    ("Node", "data_deps", 5, "uint64s"),
    ("Node", "start_time_micros", 6, "uint64"),
    ("Node", "duration_micros", 7, "uint64"),
    ("Node", "attr", 10, "AttributeProto"),
)
NODE_TYPES = ("INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL")


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Return the classes of the schema's messages by name."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    enum = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        enum.value.add(name=f"{name}_NODE", number=number)
    for message in dict.fromkeys(row[0] for row in FIELDS):
        fields = file.message_type.add(name=message).field
        for _, name, number, kind in (row for row in FIELDS if row[0] == message):
            repeated = kind in ("uint64s", "AttributeProto")
            field = fields.add(name=name, number=number)
            field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind in ("NodeType", "AttributeProto"):
                field.type = kinds.TYPE_ENUM if kind == "NodeType" else kinds.TYPE_MESSAGE
                field.type_name = f".ChakraProtoMsg.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.rstrip('s').upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
        for name in ("GlobalMetadata", "Node")
    }


def messages(content: bytes) -> list[bytes]:
    """Split messages that have their length before them, as Chakra's feeders do."""
    found = []
    while content:
        length = shift = used = 0
        while True:
            byte, used = content[used], used + 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        assert len(content) >= used + length
        found.append(content[used : used + length])
        content = content[used + length :]
    return found


@pytest.mark.parametrize("micros", [1, 127, 128, 359, 2**31, 2**40])
@pytest.mark.parametrize("name", ["sum", "a" * 200])
def test_a_trace_parses_by_the_published_schema(schema: dict[str, Any], name: str, micros: int) -> None:
    metadata, node = messages(chakra_trace(name, micros))
    head = schema["GlobalMetadata"].FromString(metadata)
    assert [(one.name, one.string_val) for one in head.attr] == [("schema", head.version)]
    found = schema["Node"].FromString(node)
    assert (found.id, found.name, found.type, found.duration_micros) == (0, name, 4, micros)
    assert [*found.ctrl_deps, *found.data_deps] == []
    # The parser keeps what it does not know: nothing is in a field that the schema lacks.
    for one in (head, found):
        copy = type(one)()
        copy.CopyFrom(one)
        copy.DiscardUnknownFields()
        assert copy.SerializeToString() == one.SerializeToString()


def test_every_rank_has_a_trace_and_the_system_file_names_them(tmp_path: Path) -> None:
    path = write_costs(tmp_path / "new", "sum", 3, 0.00036049)
    system = json.loads(path.read_text())
    (prefix,) = system["all-reduce-implementation-custom"]
    traces = [Path(f"{prefix}.{rank}.et").read_bytes() for rank in range(3)]
    assert traces == [chakra_trace("sum", 360)] * 3
    assert not Path(f"{prefix}.3.et").exists()


def test_what_cannot_be_written_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SimulationError, match="give a folder that can be written to"):
        write_costs(tmp_path / "file", "sum", 2, 1e-3)
    with pytest.raises(SimulationError, match="ranks: 0 is not a number of ranks; use 1 or more"):
        write_costs(tmp_path, "sum", 0, 1e-3)


def test_simulate_exports_each_job(tmp_path: Path, schema: dict[str, Any]) -> None:
    options = ("--workers", "3", "--elements", "65536", "--jobs", "2", "--astra-sim", str(tmp_path))
    done = peelsum("simulate", *options, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(list(tmp_path.glob("*.et"))) == 6
    for row in report["jobs"]:
        trace = (tmp_path / f"peelsum_262144_job{row['job']}.2.et").read_bytes()
        node = schema["Node"].FromString(messages(trace)[1])
        assert node.duration_micros == round(1e6 * row["seconds"])

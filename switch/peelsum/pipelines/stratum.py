"""Pack a compiled Tofino pipeline into the device config that Stratum takes over P4Runtime.

Stratum expects a serialised `BfPipelineConfig` in the field `p4_device_config` of a
SetForwardingPipelineConfig request. The message is declared in stratum/hal/lib/barefoot/bf.proto of
https://github.com/stratum/stratum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

#: The pipes of a Tofino, all of which run the program. p4c's p4c-gen-conf has the same default.
PIPES = (0, 1, 2, 3)
_PACKAGE = "stratum.hal.barefoot"
_DECLARATION = f"""
name: "stratum/hal/lib/barefoot/bf.proto"
package: "{_PACKAGE}"
syntax: "proto3"
message_type {{
  name: "BfPipelineConfig"
  nested_type {{
    name: "Profile"
    field {{ name: "profile_name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }}
    field {{ name: "context" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }}
    field {{ name: "binary" number: 3 type: TYPE_BYTES label: LABEL_OPTIONAL }}
    field {{ name: "pipe_scope" number: 4 type: TYPE_UINT32 label: LABEL_REPEATED }}
  }}
  field {{ name: "p4_name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }}
  field {{ name: "bfruntime_info" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }}
  field {{
    name: "profiles" number: 3 type: TYPE_MESSAGE label: LABEL_REPEATED
    type_name: ".{_PACKAGE}.BfPipelineConfig.Profile"
  }}
}}
"""


class Profile(NamedTuple):
    """One pipeline of a program."""

    name: str
    """Name of the `Pipeline` instance in the P4 program."""
    context: bytes
    """context.json, as written by the assembler."""
    binary: bytes
    """The assembler's binary for the device."""


def pipeline_config(program: str, bf_rt: bytes, profiles: Iterable[Profile]) -> bytes:
    """Return the serialised `BfPipelineConfig` of a program, its bf-rt.json and its pipelines."""
    pool = DescriptorPool()
    pool.Add(text_format.Parse(_DECLARATION, FileDescriptorProto()))
    message = GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.BfPipelineConfig"))
    fields = [
        {"profile_name": p.name, "context": p.context, "binary": p.binary, "pipe_scope": PIPES}
        for p in profiles
    ]
    config = message(p4_name=program, bfruntime_info=bf_rt, profiles=fields)
    return config.SerializeToString(deterministic=True)

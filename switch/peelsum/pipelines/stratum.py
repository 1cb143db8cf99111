"""Pack a compiled Tofino pipeline into the device config that Stratum takes over P4Runtime.

Stratum expects a serialised `BfPipelineConfig` in the field `p4_device_config` of a
SetForwardingPipelineConfig request. The message is declared in stratum/hal/lib/barefoot/bf.proto of
https://github.com/stratum/stratum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: The pipes of a Tofino, all of which run the program. p4c's p4c-gen-conf has the same default.
PIPES = (0, 1, 2, 3)
#: The wire type of strings, bytes, messages and packed numbers.
_LENGTH_DELIMITED = 2


class Profile(NamedTuple):
    """One pipeline of a program."""

    name: str
    """Name of the `Pipeline` instance in the P4 program."""
    context: bytes
    """context.json, as written by the assembler."""
    binary: bytes
    """The assembler's binary for the device."""


def pipeline_config(program: str, bf_rt: bytes, profiles: Iterable[Profile]) -> bytes:
    """Return the serialised `BfPipelineConfig` of a program, its bf-rt.json and its pipelines.

    Its fields are p4_name, bfruntime_info and profiles; a profile's are profile_name, context, binary and
    pipe_scope.
    """
    packed = [_message(p.name.encode(), p.context, p.binary, bytes(PIPES)) for p in profiles]
    return _message(program.encode(), bf_rt) + b"".join(_field(3, profile) for profile in packed)


def _message(*values: bytes) -> bytes:
    """Return a message with these values as its fields number 1, 2, and so on."""
    return b"".join(_field(number, value) for number, value in enumerate(values, 1))


def _field(number: int, value: bytes) -> bytes:
    length, varint = len(value), bytearray()
    while length >= 0x80:
        varint.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | _LENGTH_DELIMITED, *varint, length]) + value

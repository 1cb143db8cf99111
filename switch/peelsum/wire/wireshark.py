"""Generate a Wireshark dissector, in Lua, from the declaration of the packet format.

`peelsum switch dissector` prints it. Wireshark applies it to the UDP port of peelsum, and by `Decode As` to
any other one, such as those of a softswitch.
"""

from __future__ import annotations

from peelsum.wire import EVERYONE, FIELDS, HEADER_BYTES, UDP_PORT, VERSION, Flag, Kind

_NUMBER_BASES = {"flags": "base.HEX", "bitmap": "base.HEX"}
#: Flags by the letter with which the packet list shows them.
_FLAGS = tuple(flag for flag in Flag if flag)


def dissector() -> str:
    """Return the dissector's source text."""
    kinds = ", ".join(f'[{kind.value}] = "{kind.name}"' for kind in Kind)
    return "\n".join(
        [
            "-- Generated from peelsum.wire by `peelsum switch dissector`.",
            'local peelsum = Proto("peelsum", "peelsum in-network aggregation")',
            f"local kinds = {{{kinds}}}",
            *_declarations(),
            f"local HEADER, VERSION = {HEADER_BYTES}, {VERSION}",
            "",
            "function peelsum.dissector(buffer, pinfo, tree)",
            "  local length = buffer:len()",
            "  if length < HEADER or (length - HEADER) % 4 ~= 0 then return 0 end",
            "  if buffer(0, 1):uint() ~= VERSION then return 0 end",
            '  pinfo.cols.protocol = "peelsum"',
            "  local subtree = tree:add(peelsum, buffer())",
            *_field_statements(),
            "  local kind = kinds[buffer(1, 1):uint()] or buffer(1, 1):uint()",
            "  local sender = buffer(6, 2):uint()",
            f'  local sender_text = sender == {EVERYONE} and "" or " of " .. sender',
            '  local summary = string.format("%s%s, chunk %u", kind, sender_text, buffer(8, 4):uint())',
            "  pinfo.cols.info = summary",
            '  subtree:append_text(": " .. summary)',
            '  local lanes = subtree:add(buffer(HEADER), (length - HEADER) / 4 .. " lanes")',
            "  for offset = HEADER, length - 4, 4 do",
            '    lanes:add(f_lane, buffer(offset, 4)):prepend_text("[" .. (offset - HEADER) / 4 .. "] ")',
            "  end",
            "  return length",
            "end",
            "",
            f'DissectorTable.get("udp.port"):add({UDP_PORT}, peelsum)',
            "",
        ]
    )


def _declarations() -> list[str]:
    """Return the declarations of header fields, flags and lanes."""
    lines = []
    for name, bits in FIELDS:
        base = _NUMBER_BASES.get(name, "base.DEC")
        values = ", kinds" if name == "kind" else ""
        lines.append(f'local f_{name} = ProtoField.uint{bits}("peelsum.{name}", "{name}", {base}{values})')
    for flag in _FLAGS:
        name = str(flag.name).lower()
        field = f'ProtoField.bool("peelsum.flags.{name}", "{flag.name}", 8, nil, {flag.value})'
        lines.append(f"local f_flag_{name} = {field}")
    lines.append('local f_lane = ProtoField.uint32("peelsum.lane", "lane", base.DEC)')
    names = [f"f_{name}" for name, _ in FIELDS]
    names += [f"f_flag_{str(flag.name).lower()}" for flag in _FLAGS]
    return [*lines, f"peelsum.fields = {{{', '.join([*names, 'f_lane'])}}}"]


def _field_statements() -> list[str]:
    """Return the statements that add each header field to the tree, in wire order."""
    lines, offset = [], 0
    for name, bits in FIELDS:
        bytes_of_field = f"buffer({offset}, {bits // 8})"
        if name == "flags":
            lines.append(f"  local flags = subtree:add(f_flags, {bytes_of_field})")
            lines += [f"  flags:add(f_flag_{str(flag.name).lower()}, {bytes_of_field})" for flag in _FLAGS]
        else:
            lines.append(f"  subtree:add(f_{name}, {bytes_of_field})")
        offset += bits // 8
    return lines

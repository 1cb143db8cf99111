"""Generate P4 source from the wire format: constants, the header, and the list of lanes of each width.

`peelsum switch compile` writes the files; a test compares them with the committed ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from peelsum import wire
from peelsum.wire.clock import DEFAULT_AGE_TICKS, EPOCH_TICKS, FREED_TICKS, TICK_SHIFT, TICK_US

NOTICE = "// Generated from peelsum.wire by `peelsum switch compile`; edit that instead.\n"


def sources() -> dict[str, str]:
    """Return the text of every generated file by its path below switch/p4/generated."""
    files = {"wire.p4": wire_p4()}
    for lanes in {*wire.COMPILED_LANES, *wire.TOFINO_LANES.values()}:
        files[f"lanes_{lanes}/each_lane.p4"] = each_lane_p4(lanes)
    return files


def wire_p4() -> str:
    """Return constants, the slots' clock and the header `peelsum_h`, with `flags` split into bits."""
    lines = [
        NOTICE,
        f"const bit<8> VERSION = {wire.VERSION};",
        f"const bit<16> UDP_PORT = {wire.UDP_PORT};",
        f"const bit<9> CPU_PORT = {wire.CPU_PORT};",
        f"const bit<16> EVERYONE = {wire.EVERYONE:#x};",
        f"const bit<8> RESULT_KEPT = {wire.RESULT_KEPT:#x};  // in a slot's marks",
        "",
        f"// The slots' clock: a tick is {TICK_US} us on v1model, 2^16 ns on Tofino.",
        f"const bit<8> TICK_SHIFT = {TICK_SHIFT};  // of v1model's clock, which counts microseconds",
        f"const bit<32> EPOCH_TICKS = {EPOCH_TICKS:#x};  // added: unwritten registers look long expired",
        f"const bit<32> FREED_TICKS = {FREED_TICKS:#x};  // a freed slot's stamp is this much before now",
        f"const bit<32> DEFAULT_AGE_TICKS = {DEFAULT_AGE_TICKS};",
        "",
        *_enum("kind_t", {kind.name: kind for kind in wire.Kind}),
        "// What happened to a packet; UNDECIDED until a control decides.",
        *_enum("verdict_t", {**{verdict.name: verdict for verdict in wire.Verdict}, "UNDECIDED": 255}),
        "header peelsum_h {",
    ]
    for name, bits in wire.FIELDS:
        if name == "flags":  # most significant bit first; the reserved bits are one field
            lines.append(f"    bit<{8 - int(wire.ALL_FLAGS).bit_count()}> reserved_flags;")
            flags = sorted(wire.Flag, key=lambda flag: -flag.value)
            lines += [f"    bit<1> flag_{str(flag.name).lower()};" for flag in flags]
        else:
            lines.append(f"    {'kind_t' if name == 'kind' else f'bit<{bits}>'} {name};")
    return "\n".join([*lines, "}", ""])


def each_lane_p4(lanes: int) -> str:
    """Return the packet length for this number of lanes, and the macro that repeats a statement for each."""
    calls = [f"DO({i})" for i in range(lanes)]
    rows = [" ".join(calls[i : i + 8]) for i in range(0, lanes, 8)]
    return "\n".join(
        [
            NOTICE,
            f"// UDP length of a packet: 8 bytes of UDP header, then {wire.packet_bytes(lanes)} of ours.",
            f"const bit<16> PACKET_UDP_LENGTH = {8 + wire.packet_bytes(lanes)};",
            "",
            " \\\n    ".join(["#define EACH_LANE(DO)", *rows]),
            "",
        ]
    )


def _enum(type_name: str, values: Mapping[str, int]) -> list[str]:
    rows = [f"    {name} = {value}," for name, value in values.items()]
    return [f"enum bit<8> {type_name} {{", *rows[:-1], rows[-1].rstrip(","), "}", ""]

"""Generate P4 source from the wire format: constants, the header, and a field and a register per lane.

`peelsum switch compile` writes the files; a test compares them with the committed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum

from peelsum.wire.clock import DEFAULT_AGE_TICKS, EPOCH_TICKS, FREED_TICKS, TICK_SHIFT, TICK_US
from peelsum.wire.format import (
    ALL_FLAGS,
    COMPILED_LANES,
    CPU_PORT,
    EVERYONE,
    FIELDS,
    TOFINO_LANES,
    UDP_PORT,
    VERSION,
    Flag,
    Kind,
    Verdict,
    packet_bytes,
)

NOTICE = "// Generated from peelsum.wire by `peelsum switch compile`; edit that instead.\n"


def sources() -> dict[str, str]:
    """Return the text of every generated file by its path below switch/p4/generated."""
    files = {"wire.p4": wire_p4()}
    for lanes in COMPILED_LANES:
        files[f"lanes_{lanes}/lanes_h.p4"] = lanes_h_p4(lanes)
        files[f"lanes_{lanes}/v1model_lanes.p4"] = v1model_lanes_p4(lanes)
    for lanes in TOFINO_LANES.values():
        files[f"lanes_{lanes}/lanes_h.p4"] = lanes_h_p4(lanes)
        files[f"lanes_{lanes}/tofino_lanes.p4"] = tofino_lanes_p4(lanes)
    return files


def wire_p4() -> str:
    """Return constants, the slots' clock and the header `peelsum_h`, with `flags` split into bits."""
    lines = [
        NOTICE,
        f"const bit<8> VERSION = {VERSION};",
        f"const bit<16> UDP_PORT = {UDP_PORT};",
        f"const bit<9> CPU_PORT = {CPU_PORT};",
        f"const bit<16> EVERYONE = {EVERYONE:#x};",
        "",
        f"// The slots' clock: a tick is {TICK_US} us on v1model, 2^16 ns on Tofino.",
        f"const bit<8> TICK_SHIFT = {TICK_SHIFT};  // of v1model's clock, which counts microseconds",
        f"const bit<32> EPOCH_TICKS = {EPOCH_TICKS:#x};  // added: unwritten registers look long expired",
        f"const bit<32> FREED_TICKS = {FREED_TICKS:#x};  // a freed slot's stamp is this much before now",
        f"const bit<32> DEFAULT_AGE_TICKS = {DEFAULT_AGE_TICKS};",
        "",
        *_constants("kind_t", "KIND", Kind),
        *_constants("verdict_t", "VERDICT", Verdict),
        "header peelsum_h {",
    ]
    for name, bits in FIELDS:
        lines += _flag_bits() if name == "flags" else [f"    bit<{bits}> {name};"]
    return "\n".join([*lines, "}", ""])


def lanes_h_p4(lanes: int) -> str:
    """Return the header `lanes_h` and the packet length for this number of lanes."""
    return "\n".join(
        [
            NOTICE,
            f"// UDP length of a packet: 8 bytes of UDP header, then {packet_bytes(lanes)} of ours.",
            f"const bit<16> PACKET_UDP_LENGTH = {8 + packet_bytes(lanes)};",
            "",
            "header lanes_h {",
            *_each(lanes, lambda i: [f"    bit<32> v{i};"]),
            "}",
            "",
        ]
    )


def v1model_lanes_p4(lanes: int) -> str:
    """Return the control `Lanes` for v1model: one register per lane and its four operations."""
    return "\n".join(
        [
            NOTICE,
            "control Lanes(in lane_op_t op, in bit<32> slot_index, inout lanes_h lanes) {",
            *_each(lanes, lambda i: [f"    register<bit<32>>(SLOTS) lane_{i};"]),
            "    bit<32> held;",
            *_action("set", lanes, lambda i: [f"lane_{i}.write(slot_index, lanes.v{i});"]),
            *_action("add", lanes, lambda i: _modify(i, "+")),
            *_action("or", lanes, lambda i: _modify(i, "|")),
            *_action("read", lanes, lambda i: [f"lane_{i}.read(lanes.v{i}, slot_index);"]),
            "    apply {",
            "        if (op == LANES_ADD) add_lanes();",
            "        else if (op == LANES_SET) set_lanes();",
            "        else if (op == LANES_OR) or_lanes();",
            "        else if (op == LANES_READ) read_lanes();",
            "    }",
            "}",
            "",
        ]
    )


def tofino_lanes_p4(lanes: int) -> str:
    """Return the control `Lanes` for Tofino: one control `Lane` per lane, each with a stateful ALU."""
    return "\n".join(
        [
            NOTICE,
            "control Lanes(in lane_op_t op, in bit<32> slot_index, inout lanes_h lanes) {",
            *_each(lanes, lambda i: [f"    Lane() lane_{i};"]),
            "",
            "    apply {",
            *_each(lanes, lambda i: [f"        lane_{i}.apply(op, slot_index, lanes.v{i});"]),
            "    }",
            "}",
            "",
        ]
    )


def _constants(type_name: str, prefix: str, members: type[IntEnum]) -> list[str]:
    rows = [f"const {type_name} {prefix}_{m.name} = {m.value};" for m in members]
    return [f"typedef bit<8> {type_name};", *rows, ""]


def _flag_bits() -> list[str]:
    """Return the bits of `flags`, most significant first; the reserved ones are one field."""
    reserved = 8 - int(ALL_FLAGS).bit_count()
    named = sorted(Flag, key=lambda flag: -flag.value)
    return [
        f"    bit<{reserved}> reserved_flags;",
        *(f"    bit<1> flag_{str(f.name).lower()};" for f in named),
    ]


def _each(lanes: int, lines: Callable[[int], Iterable[str]]) -> list[str]:
    return [line for i in range(lanes) for line in lines(i)]


def _modify(lane: int, operator: str) -> list[str]:
    return [
        f"lane_{lane}.read(held, slot_index);",
        f"lanes.v{lane} = lanes.v{lane} {operator} held;",
        f"lane_{lane}.write(slot_index, lanes.v{lane});",
    ]


def _action(name: str, lanes: int, body: Callable[[int], Iterable[str]]) -> list[str]:
    statements = _each(lanes, lambda i: [f"        {line}" for line in body(i)])
    return [f"    action {name}_lanes() {{", *statements, "    }"]

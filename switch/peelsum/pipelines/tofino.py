"""Compile the program with p4c's Tofino back end, check the result, and report its resources as one page."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from peelsum.pipelines.artifacts import (
    ARTIFACTS,
    P4_SOURCES,
    PipelineError,
    digests,
    run_tool,
    write_generated,
)
from peelsum.wire import TOFINO_LANES

COMPILER, ASSEMBLER = "p4c-barefoot", "bfas"
ARCHITECTURES = {"tofino": "tna", "tofino2": "t2na"}
#: Files for a controller, beside the compiler's own output.
P4INFO, BF_RT, STRATUM_CONFIG = "p4info.txtpb", "bf-rt.json", "stratum.pb.bin"
#: Column of a report -> where the compiler's resource report lists what a stage uses of it, and the key.
_PER_STAGE = {
    "tables": ("logical_tables", "ids"),
    "gateways": ("gateways", "gateways"),
    "SALUs": ("meter_alus", "meters"),
    "SRAMs": ("rams", "srams"),
    "map RAMs": ("map_rams", "maprams"),
    "TCAMs": ("tcams", "tcams"),
    "VLIW": ("vliw", "instructions"),
    "crossbar B": ("xbar_bytes", "bytes"),
}


def report_path(device: str) -> Path:
    """Return the path of a device's committed report."""
    return ARTIFACTS / f"{device}_{TOFINO_LANES[device]}.txt"


def fingerprint(lanes: int) -> str:
    """Return a digest of the P4 sources of a Tofino pipeline of `lanes` lanes."""
    generated = ("generated/wire.p4", f"generated/lanes_{lanes}/each_lane.p4")
    file_digests = {
        name: sha
        for pattern in ("core/*.p4*", "tofino/*.p4", *generated)
        for name, sha in digests(P4_SOURCES, pattern).items()
    }
    return hashlib.sha256(json.dumps(file_digests, sort_keys=True).encode()).hexdigest()[:16]


def compile_for(device: str, out: Path | None = None, *, processor_port: int | None = None) -> str:
    """Compile and assemble for `tofino` or `tofino2`; return the report.

    `out` keeps the compiler's output, with P4Info, bf-rt.json and the device config for Stratum.
    `processor_port` is the port of the switch's processor; None is the program's default. Raises
    PipelineError if the compiler is missing or fails, if its parsers compare nothing, or if the program needs
    more stages than the device has.
    """
    for tool in (COMPILER, ASSEMBLER):
        if shutil.which(tool) is None:
            raise PipelineError(f"{tool}: not found on PATH; build p4c with its Tofino back end")
    lanes = TOFINO_LANES[device]
    write_generated(P4_SOURCES)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        return _compile(device, lanes, out.resolve(), processor_port)
    with tempfile.TemporaryDirectory() as folder:
        return _compile(device, lanes, Path(folder), processor_port)


def _compile(device: str, lanes: int, out: Path, processor_port: int | None) -> str:
    """Compile and assemble for a device into `out`; write Stratum's config there, and return the report.

    Raises PipelineError if a tool fails, a parser compares nothing, or the program needs too many stages.
    """
    command = [COMPILER, "--std", "p4-16", "--target", device, "--arch", ARCHITECTURES[device]]
    command += [f"-Igenerated/lanes_{lanes}"]
    command += [] if processor_port is None else [f"-DPCIE_PORT={processor_port}"]
    command += ["-g", "--verbose", "-Ttable_summary:1", "-o", str(out)]
    # Standard externs, as P4Runtime clients know them, instead of Tofino's own.
    command += ["--p4runtime-files", str(out / P4INFO), "--p4runtime-force-std-externs"]
    run_tool([*command, "--bf-rt-schema", str(out / BF_RT), "tofino/peelsum.p4"], P4_SOURCES)
    pipe = out / "pipe"
    assembly = pipe / "peelsum.bfa"
    check_parsers(device, assembly.read_text())
    run_tool([ASSEMBLER, "--target", device, "-o", str(pipe), str(assembly)], P4_SOURCES)
    profile = Profile("pipe", (pipe / "context.json").read_bytes(), (pipe / f"{device}.bin").read_bytes())
    config = pipeline_config("peelsum", (out / BF_RT).read_bytes(), [profile])
    (out / STRATUM_CONFIG).write_bytes(config)
    return report(device, lanes, pipe, fingerprint(lanes))


def check_parsers(device: str, assembly: str) -> None:
    """Raise PipelineError if a parser in the assembly compares no value: some compilers have that defect."""
    for parser in ("ingress", "egress"):
        section = re.search(rf"^parser {parser}:\n((?: .*\n)*)", assembly, re.MULTILINE)
        if section is None or "match: [" not in section[1]:
            raise PipelineError(
                f"{device}: {COMPILER} wrote a parser {parser} that compares nothing; "
                "use another version, see docs/reference/tofino.md"
            )


def report(device: str, lanes: int, pipe: Path, sources: str) -> str:
    """Return the report: resources used per stage, PHV containers, and the stage of each table.

    pipe: the compiler's output folder of that name. sources: the fingerprint of the sources. Raises
    PipelineError if the program needs too many stages.
    """
    resources = json.loads((pipe / "logs" / "resources.json").read_text())
    phv = json.loads((pipe / "logs" / "phv.json").read_text())
    summary = (pipe / "logs" / "table_summary.log").read_text()
    stages = resources["resources"]["mau"]["mau_stages"]
    used = sum(1 for stage in stages if stage["logical_tables"]["ids"])
    if used > phv["nStages"]:
        raise PipelineError(
            f"{device}: {lanes} lanes take {used} stages of {phv['nStages']}; use fewer lanes"
        )
    return "\n".join(
        [
            f"peelsum for {device}, {lanes} lanes: {used} of {phv['nStages']} stages",
            f"{COMPILER} {resources['compiler_version']}, sources {sources}",
            "",
            *_stage_table(stages),
            "",
            "PHV containers:",
            *_container_rows(phv),
            "",
            "Where each table went (ingress and egress share the stages):",
            *_table_placements(summary),
            "",
        ]
    )


def _stage_table(stages: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table: what each stage uses of each resource, the sums, and what a stage has."""
    rows = [
        [stage["stage_number"], *(len(stage[part][key]) for part, key in _PER_STAGE.values())]
        for stage in stages
    ]
    totals = ["sum", *(sum(row[i + 1] for row in rows) for i in range(len(_PER_STAGE)))]
    size = {name: stages[0][part] for name, (part, _) in _PER_STAGE.items()}
    grid = {"SALUs": size["SALUs"]["nAlus"]}
    for name, units in (
        ("gateways", "Units"),
        ("SRAMs", "Columns"),
        ("map RAMs", "Units"),
        ("TCAMs", "Columns"),
    ):
        grid[name] = size[name]["nRows"] * size[name][f"n{units}"]
    available = [f"{grid.get(name) or size[name]['size']}" for name in _PER_STAGE]
    return _aligned_columns([["stage", *_PER_STAGE], *rows, totals, ["a stage has", *available]])


def _container_rows(phv: dict[str, Any]) -> list[str]:
    """Return the lines of a table: how many PHV containers of each width are used, and there are."""
    used_containers = Counter((c["bit_width"], c["container_type"]) for c in phv["containers"] if c["slices"])
    available = Counter[int]()
    for group in phv["resources"]:
        if group["group_type"] == "mau":
            available[group["bit_width"]] += group["num_containers"]
    rows = []
    for bits, total in sorted(available.items()):
        kinds = {kind: n for (width, kind), n in sorted(used_containers.items()) if width == bits}
        rows.append([bits, sum(kinds.values()), total, ", ".join(f"{n} {kind}" for kind, n in kinds.items())])
    return _aligned_columns([["bits", "used", "of", "kinds"], *rows])


def _table_placements(summary: str) -> list[str]:
    """Return the tables of each stage, from the last placement that the compiler tried."""
    last = summary[summary.rindex("Number of stages in table allocation") :]
    tables: dict[int, list[str]] = {}
    for stage, name in re.findall(r"^\|\s+(\d+)\s+\|.*\|\s+(\S+)\s+\|$", last, re.MULTILINE):
        tables.setdefault(int(stage), []).append(name)
    rows = []
    for stage, names in sorted(tables.items()):
        # The program's tables, then how many lanes, and how many tables of conditions.
        lanes = [name for name in names if re.search(r"lane_\d+\.operations$", name)]
        named = [name for name in names if name not in lanes and name.startswith(("Ingress.", "Egress."))]
        counts = {"lanes": len(lanes), "conditions": len(names) - len(lanes) - len(named)}
        short = (name.replace("Ingress.aggregation.", "").replace("Egress.", "egress ") for name in named)
        parts = [*sorted(short), *(f"{count} {what}" for what, count in counts.items() if count)]
        rows.append(f"  {stage:2}  {', '.join(parts)}")
    return rows


def _aligned_columns(rows: list[list[Any]]) -> list[str]:
    """Return a line for each row, with all cells of a column right-aligned to one width."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    ]


# Stratum takes a compiled pipeline in the field `p4_device_config` of a SetForwardingPipelineConfig request,
# as the message `BfPipelineConfig` of stratum/hal/lib/barefoot/bf.proto, https://github.com/stratum/stratum.

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

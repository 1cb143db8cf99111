"""The compiled pipelines that come with peelsum: find them, check that they are current, rebuild them.

Two widths are committed: the default and the smallest. The others are derived from the smallest when they are
asked for, without p4c, and are the same bytes as p4c's, by the digests in the manifest. The program has a
header field, a register and some statements for each lane (`peelsum.wire.p4`). p4c repeats them lane by lane;
everything else is equal in all widths, except for the packet's length.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from peelsum.wire import COMPILED_LANES, DEFAULT_LANES
from peelsum.wire.p4 import sources as generated_sources

COMPILER = "p4c-bm2-ss"
#: Lanes of the pipeline that the others are derived from.
BASE_LANES = 32
MANIFEST = "manifest.json"
#: Lanes of the pipelines whose files are committed.
COMMITTED_LANES = (BASE_LANES, DEFAULT_LANES)


class PipelineError(Exception):
    """A compiled pipeline is missing or stale, or cannot be rebuilt."""


@dataclass(frozen=True)
class Pipeline:
    """A compiled pipeline: BMv2 JSON and P4Info (protobuf text)."""

    lanes: int
    json_path: Path
    p4info_path: Path

    @classmethod
    def of(cls, lanes: int, folder: Path) -> Pipeline:
        """Return the pipeline whose files are in a folder, by their usual names."""
        return cls(lanes, folder / f"peelsum_{lanes}.json", folder / f"peelsum_{lanes}.p4info.txtpb")


def _data_folder(name: str) -> Path:
    """Return a folder that is inside this package in a wheel, and in switch/ in a checkout."""
    packaged = Path(__file__).parent / name
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / name


ARTIFACTS = _data_folder("artifacts")
P4_SOURCES = _data_folder("p4")


def pipeline(lanes: int, artifacts: Path = ARTIFACTS, p4: Path = P4_SOURCES) -> Pipeline:
    """Return the pipeline of `lanes` lanes. Raises PipelineError if it is missing or stale."""
    if lanes not in COMPILED_LANES:
        choices = ", ".join(map(str, COMPILED_LANES))
        raise PipelineError(f"lanes: {lanes} is not compiled; choose one of {choices}")
    reason = staleness(artifacts, p4)
    if reason:
        raise PipelineError(f"pipeline: {reason}; run `peelsum switch compile` (it needs {COMPILER})")
    return (
        Pipeline.of(lanes, artifacts)
        if lanes in COMMITTED_LANES
        else _derived_pipeline(lanes, artifacts, os.getpid())
    )


@cache
def _derived_pipeline(lanes: int, artifacts: Path, process: int) -> Pipeline:
    """Write the files of a pipeline of another width, and return it. They are removed when this process ends.

    process: this process's id, so that a forked child makes its own. Raises PipelineError if the files differ
    from the compiler's, by the digests in the manifest.
    """
    base, manifest = Pipeline.of(BASE_LANES, artifacts), json.loads((artifacts / MANIFEST).read_text())
    derived = Pipeline.of(lanes, _temporary_folder(process))
    derived.json_path.write_text(json_of(base.json_path.read_text(), lanes))
    derived.p4info_path.write_text(p4info_of(base.p4info_path.read_text(), lanes))
    for path in (derived.json_path, derived.p4info_path):
        if _digest(path.read_bytes()) != manifest["artifacts"].get(path.name):
            raise PipelineError(f"pipeline: {path.name} differs from the one that {COMPILER} made")
    return derived


@cache
def _temporary_folder(process: int) -> Path:
    """Return a new folder, which this process removes when it ends, but its forked children do not."""
    folder = tempfile.mkdtemp(prefix="peelsum-pipelines-")

    @atexit.register
    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    return Path(folder)


def staleness(artifacts: Path = ARTIFACTS, p4: Path = P4_SOURCES) -> str | None:
    """Return why the pipelines in `artifacts` do not match the sources in `p4`, or None if they do."""
    try:
        manifest = json.loads((artifacts / MANIFEST).read_text())
    except (OSError, ValueError):
        return f"{artifacts / MANIFEST} is missing or unreadable"
    current_sources, recorded = _sources(p4), dict[str, str](manifest["sources"])
    generated = {f"generated/{name}": _digest(text.encode()) for name, text in generated_sources().items()}
    changed = sorted(
        name
        for name in current_sources.keys() | recorded
        if {current_sources.get(name), generated.get(name, current_sources.get(name))} != {recorded.get(name)}
    )
    if changed:
        return f"{changed[0]} changed after the pipelines were compiled"
    built, recorded = digests(artifacts, "peelsum_*"), manifest["artifacts"]
    committed = {
        f"peelsum_{lanes}{ending}" for lanes in COMMITTED_LANES for ending in (".json", ".p4info.txtpb")
    }
    mismatched = sorted(name for name in built.keys() | committed if built.get(name) != recorded.get(name))
    return f"{mismatched[0]} differs from the compiled one" if mismatched else None


def digests(folder: Path, pattern: str) -> dict[str, str]:
    """Return the SHA-256 of every file in `folder` that matches, by POSIX path relative to it."""
    return {
        path.relative_to(folder).as_posix(): _digest(path.read_bytes())
        for path in sorted(folder.glob(pattern))
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sources(p4: Path) -> dict[str, str]:
    """Return the digests of these pipelines' sources, without those only for Tofino."""
    return {
        name: digest for name, digest in digests(p4, "**/*.p4*").items() if not name.startswith("tofino/")
    }


def write_generated(p4: Path = P4_SOURCES) -> None:
    """Write the P4 files generated from `peelsum.wire` below p4/generated, if they differ from those there.

    Files that are up to date are not written: a process that reads one meanwhile would see half of it.
    """
    for name, text in generated_sources().items():
        path = p4 / "generated" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def compile_pipelines(artifacts: Path = ARTIFACTS, p4: Path = P4_SOURCES) -> list[Pipeline]:
    """Write the generated sources, the committed pipelines, and the manifest with the digests of all widths.

    Raises PipelineError if the compiler is missing or fails, or if another pipeline than the
    compiler's is derived for some width.
    """
    if shutil.which(COMPILER) is None:
        raise PipelineError(f"{COMPILER}: not found on PATH; install p4c, or keep the committed pipelines")
    write_generated(p4)
    artifacts.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        compiled = [_compile(lanes, Path(name), p4) for lanes in COMPILED_LANES]
        (base,) = (pipeline for pipeline in compiled if pipeline.lanes == BASE_LANES)
        program, p4info = base.json_path.read_text(), base.p4info_path.read_text()
        for width in compiled:
            derived = (json_of(program, width.lanes), p4info_of(p4info, width.lanes))
            if derived != (width.json_path.read_text(), width.p4info_path.read_text()):
                raise PipelineError(
                    f"{width.json_path.name}: cannot be derived from {BASE_LANES} lanes; "
                    "correct `json_of` and `p4info_of`"
                )
        # Some versions of the compiler print their name and version to stdout and others to stderr.
        version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=False)
        manifest = {
            "compiler": " ".join((version.stdout + version.stderr).split()),
            "sources": _sources(p4),
            "artifacts": digests(Path(name), "peelsum_*"),
        }
        built = [Pipeline.of(lanes, artifacts) for lanes in COMMITTED_LANES]
        for path in (path for pipeline in built for path in (pipeline.json_path, pipeline.p4info_path)):
            shutil.copyfile(Path(name) / path.name, path)
    (artifacts / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return built


def _compile(lanes: int, artifacts: Path, p4: Path) -> Pipeline:
    """Compile the program for this number of lanes into the folder `artifacts`."""
    built = Pipeline.of(lanes, artifacts)
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.json"
        # Run in the sources' folder: the compiler writes its arguments' paths into its output.
        command = [COMPILER, "--std", "p4-16", "-I", f"generated/lanes_{lanes}", "-o", str(raw)]
        run_tool([*command, "--p4runtime-files", str(built.p4info_path), "v1model/peelsum.p4"], p4)
        program = without_source_info(json.loads(raw.read_text()))
    program["program"] = "v1model/peelsum.p4i"
    built.json_path.write_text(json.dumps(program, separators=(",", ":")) + "\n")
    return built


def run_tool(command: list[str], folder: Path) -> None:
    """Run a compiler in a folder. Raises PipelineError with its first line about an error, if it fails."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        stderr = result.stderr.strip()
        message = next((line for line in stderr.splitlines() if "error" in line), stderr)
        raise PipelineError(f"{command[0]}: exit status {result.returncode}: {message}")


def without_source_info(node: Any) -> Any:
    """Return the JSON without positions in source files, which are two thirds of it."""
    if isinstance(node, dict):
        return {key: without_source_info(value) for key, value in node.items() if key != "source_info"}
    if isinstance(node, list):
        return [without_source_info(value) for value in node]
    return node


_REGISTER = "PeelsumIngress.aggregation.slot.lanes.lane_"
_LANE_BYTES = 4
#: What p4c puts into the top eight bits of a register's id.
_REGISTER_ID = 0x16 << 24


def json_of(base: str, lanes: int) -> str:
    """Return p4c's BMv2 JSON of `lanes` lanes, derived from that of BASE_LANES."""
    program = with_lanes(json.loads(base), lanes)
    for parser in program["parsers"]:
        for state in parser["parse_states"]:
            for transition in state["transitions"]:
                transition["value"] = _with_length(transition["value"], lanes)
    return json.dumps(program, separators=(",", ":")) + "\n"


def with_lanes(program: dict[str, Any], lanes: int) -> dict[str, Any]:
    """Return a BMv2 JSON document with another number of lanes.

    A lane is the field `v0`, `v1` and so on of `lanes_h` and registers with the lane's number, such as
    `lane_0`, `lane_1` and so on. Statements of actions that use them are repeated for each lane.
    Raises PipelineError if there are no lanes, or an action does something else with lane 1 than with lane 0.
    """
    program = without_source_info(program)
    kinds = program.get("header_types", ())
    fields: list[Any] = next((kind["fields"] for kind in kinds if kind["name"] == "lanes_h"), [])
    base = len(fields)
    if not base:
        raise PipelineError("lanes_h: the program has no such header; give it fields v0, v1 and so on")
    fields[:] = _each_lane(fields, base, lanes, "lanes_h")
    arrays = program["register_arrays"]
    for array in arrays:
        array["id"] = 0
    # The registers of several sets of lanes have different prefixes.
    registers, prefixes = list[Any](), list[str]()
    for prefix, group in groupby(arrays, lambda array: re.sub(r"(?<=_)\d+$", "", array["name"])):
        members = list(group)
        if [array["name"] for array in members] == [f"{prefix}{lane}" for lane in range(base)]:
            members = _each_lane(members, base, lanes, prefix, [prefix])
            prefixes.append(prefix)
        registers += members
    for number, array in enumerate(registers):
        array["id"] = number
    program["register_arrays"] = registers
    for action in program["actions"]:
        if re.search(r'"v1"', json.dumps(action["primitives"])):
            action["primitives"] = _each_lane(
                action["primitives"], base, lanes, f"action {action['name']}", prefixes
            )
    return program


def _each_lane(items: list[Any], base: int, lanes: int, what: str, prefixes: Sequence[str] = ()) -> list[Any]:
    """Return the items of each lane, copied from those of lane 0, the first of `base` lanes in `items`.

    prefixes: the names of the lanes' registers, without the lanes' numbers.
    Raises PipelineError, which names `what` has the items, if those of other lanes differ.
    """
    size = len(items) // base
    lane_0 = json.dumps(items[:size])
    names = re.compile(rf'("(?:{"|".join(["v", *map(re.escape, prefixes)])}))0"')

    def copied(number: int) -> list[Any]:
        copies = []
        for lane in range(number):
            copies += json.loads(names.sub(rf'\g<1>{lane}"', lane_0))
            for item in copies[lane * size :]:
                if isinstance(item, dict) and item.get("op") in ("_jump", "_jump_if_zero"):
                    target = item["parameters"][-1]  # the number of a statement
                    target["value"] = hex(int(target["value"], 16) + lane * size)
        return copies

    if copied(base) != items:
        raise PipelineError(
            f"{what}: has other statements for lane 1 than for lane 0; move those into another action, use "
            "`if` in place of `?:`, and call the registers of lanes NAME_0, NAME_1 and so on"
        )
    return copied(lanes)


def _with_length(value: str | None, lanes: int) -> str | None:
    """Return the value of a parser's transition with the packet length of `lanes` lanes.

    Such a value is 0xLLLLVVRR: UDP's length, the version and the reserved byte. Others are returned
    unchanged.
    """
    if value is None or len(value) != len("0xLLLLVVRR"):
        return value
    length = int(value[2:6], 16) + _LANE_BYTES * (lanes - BASE_LANES)
    return f"0x{length:04x}{value[6:]}"


def p4info_of(base: str, lanes: int) -> str:
    """Return p4c's P4Info of `lanes` lanes, as protobuf text, derived from that of BASE_LANES."""
    start = base.index(f"registers {{\n  preamble {{\n    id: {_register_id(0)}\n")
    end = base.index("\n}\n", base.rindex(f'"{_REGISTER}')) + len("\n}\n")
    first_block = base[start : base.index("\n}\n", start) + len("\n}\n")]
    template = first_block.replace(str(_register_id(0)), "{id}", 1).replace('lane_0"', 'lane_{lane}"')
    blocks = (
        template.replace("{id}", str(_register_id(lane))).replace("{lane}", str(lane))
        for lane in range(lanes)
    )
    return base[:start] + "".join(blocks) + base[end:]


def _register_id(lane: int) -> int:
    """Return the id that p4c gives a lane's register: Jenkins's one-at-a-time hash of its name."""
    value = 0
    for byte in f"{_REGISTER}{lane}".encode():
        value = (value + byte) & 0xFFFFFFFF
        value = (value + (value << 10)) & 0xFFFFFFFF
        value ^= value >> 6
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 11
    return _REGISTER_ID | (value + (value << 15)) & 0xFFFFFF

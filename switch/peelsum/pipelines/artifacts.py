"""The compiled pipelines that come with peelsum: find them, check that they are current, rebuild them.

Two widths are committed: the default and the smallest. The others are made from the smallest when they are
asked for (`peelsum.pipelines.widths`), and are the same bytes as p4c's.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from peelsum.pipelines.widths import BASE_LANES, json_of, p4info_of
from peelsum.wire import COMPILED_LANES, DEFAULT_LANES
from peelsum.wire.p4 import sources as generated_sources

COMPILER = "p4c-bm2-ss"
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


def _beside_or_in_checkout(name: str) -> Path:
    """Return a folder that is inside this package in a wheel, and in switch/ in a checkout."""
    packaged = Path(__file__).parent / name
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / name


ARTIFACTS = _beside_or_in_checkout("artifacts")
P4_SOURCES = _beside_or_in_checkout("p4")


def pipeline(lanes: int, artifacts: Path = ARTIFACTS, p4: Path = P4_SOURCES) -> Pipeline:
    """Return the pipeline of `lanes` lanes. Raises PipelineError if it is missing or stale."""
    if lanes not in COMPILED_LANES:
        have = ", ".join(map(str, COMPILED_LANES))
        raise PipelineError(f"lanes: {lanes} is not compiled; choose one of {have}")
    reason = staleness(artifacts, p4)
    if reason:
        raise PipelineError(f"pipeline: {reason}; run `peelsum switch compile` (it needs {COMPILER})")
    return Pipeline.of(lanes, artifacts) if lanes in COMMITTED_LANES else _made(lanes, artifacts, os.getpid())


@cache
def _made(lanes: int, artifacts: Path, process: int) -> Pipeline:
    """Make a pipeline of other lanes; its files last until this process, whose id is given, ends.

    Raises PipelineError if it is not what the compiler made.
    """
    base, recorded = Pipeline.of(BASE_LANES, artifacts), json.loads((artifacts / MANIFEST).read_text())
    made = Pipeline.of(lanes, _temporary_folder(process))
    made.json_path.write_text(json_of(base.json_path.read_text(), lanes))
    made.p4info_path.write_text(p4info_of(base.p4info_path.read_text(), lanes))
    for path in (made.json_path, made.p4info_path):
        if _digest(path.read_bytes()) != recorded["artifacts"].get(path.name):
            raise PipelineError(f"pipeline: {path.name} as made is not the one that {COMPILER} made")
    return made


@cache
def _temporary_folder(process: int) -> Path:
    """Return a new folder that the process removes at its end, and its forked children do not."""
    folder = tempfile.mkdtemp(prefix="peelsum-pipelines-")
    atexit.register(_remove, folder, process)
    return Path(folder)


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def staleness(artifacts: Path = ARTIFACTS, p4: Path = P4_SOURCES) -> str | None:
    """Return why the pipelines in `artifacts` do not match the sources in `p4`, or None if they do."""
    try:
        manifest = json.loads((artifacts / MANIFEST).read_text())
    except (OSError, ValueError):
        return f"{artifacts / MANIFEST} is missing or unreadable"
    current, recorded = _sources(p4), dict[str, str](manifest["sources"])
    made = {f"generated/{name}": _digest(text.encode()) for name, text in generated_sources().items()}
    changed = sorted(
        name
        for name in current.keys() | recorded
        if {current.get(name), made.get(name, current.get(name))} != {recorded.get(name)}
    )
    if changed:
        return f"{changed[0]} changed after the pipelines were compiled"
    built, recorded = digests(artifacts, "peelsum_*"), manifest["artifacts"]
    committed = {
        f"peelsum_{lanes}{ending}" for lanes in COMMITTED_LANES for ending in (".json", ".p4info.txtpb")
    }
    foreign = sorted(name for name in built.keys() | committed if built.get(name) != recorded.get(name))
    return f"{foreign[0]} is not the one that was compiled" if foreign else None


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

    Another process may read the files meanwhile: one that is half written would look changed.
    """
    for name, text in generated_sources().items():
        path = p4 / "generated" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def compile_pipelines(artifacts: Path = ARTIFACTS, p4: Path = P4_SOURCES) -> list[Pipeline]:
    """Rebuild the generated sources, the committed pipelines and the manifest, which has all widths' digests.

    Raises PipelineError if the compiler is missing or fails, or if a width does not follow from the smallest.
    """
    if shutil.which(COMPILER) is None:
        raise PipelineError(f"{COMPILER}: not found on PATH; install p4c, or keep the committed pipelines")
    write_generated(p4)
    artifacts.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        compiled = [_compile(lanes, Path(name), p4) for lanes in COMPILED_LANES]
        _check_rule(compiled)
        manifest = {
            "compiler": _version(),
            "sources": _sources(p4),
            "artifacts": digests(Path(name), "peelsum_*"),
        }
        built = [Pipeline.of(lanes, artifacts) for lanes in COMMITTED_LANES]
        for path in (path for pipeline in built for path in (pipeline.json_path, pipeline.p4info_path)):
            shutil.copyfile(Path(name) / path.name, path)
    (artifacts / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return built


def _check_rule(compiled: list[Pipeline]) -> None:
    """Raise PipelineError unless every width is what `widths` makes of the smallest."""
    (base,) = (pipeline for pipeline in compiled if pipeline.lanes == BASE_LANES)
    program, info = base.json_path.read_text(), base.p4info_path.read_text()
    for width in compiled:
        made = (json_of(program, width.lanes), p4info_of(info, width.lanes))
        if made != (width.json_path.read_text(), width.p4info_path.read_text()):
            name, remedy = width.json_path.name, "correct peelsum.pipelines.widths"
            raise PipelineError(f"{name}: does not follow from {BASE_LANES} lanes; {remedy}")


def _compile(lanes: int, artifacts: Path, p4: Path) -> Pipeline:
    built = Pipeline.of(lanes, artifacts)
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.json"
        # Run in the sources' folder: the compiler writes its arguments' paths into its output.
        command = [COMPILER, "--std", "p4-16", "-I", f"generated/lanes_{lanes}", "-o", str(raw)]
        _run([*command, "--p4runtime-files", str(built.p4info_path), "v1model/peelsum.p4"], p4)
        program = _without_source_info(json.loads(raw.read_text()))
    program["program"] = "v1model/peelsum.p4i"
    built.json_path.write_text(json.dumps(program, separators=(",", ":")) + "\n")
    return built


def _version() -> str:
    """Return the compiler's name and version. Versions differ in the stream that they write it to."""
    done = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=False)
    return " ".join((done.stdout + done.stderr).split())


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PipelineError(f"{command[0]}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _without_source_info(node: Any) -> Any:
    """Return the JSON without positions in source files, which are two thirds of it."""
    if isinstance(node, dict):
        return {key: _without_source_info(value) for key, value in node.items() if key != "source_info"}
    if isinstance(node, list):
        return [_without_source_info(value) for value in node]
    return node

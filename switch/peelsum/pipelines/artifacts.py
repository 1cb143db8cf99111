"""The compiled pipelines that come with peelsum: find them, check that they are current, rebuild them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peelsum.wire import COMPILED_LANES
from peelsum.wire.p4 import sources as generated_sources

COMPILER = "p4c-bm2-ss"
MANIFEST = "manifest.json"


class PipelineError(Exception):
    """A compiled pipeline is missing or stale, or cannot be rebuilt."""


@dataclass(frozen=True)
class Pipeline:
    """A compiled pipeline: BMv2 JSON and P4Info (protobuf text)."""

    lanes: int
    json_path: Path
    p4info_path: Path


def _beside_or_in_checkout(name: str) -> Path:
    """Return a folder that is inside this package in a wheel, and in switch/ in a checkout."""
    packaged = Path(__file__).parent / name
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / name


ARTIFACTS = _beside_or_in_checkout("artifacts")
P4_SOURCES = _beside_or_in_checkout("p4")


def pipeline(lanes: int, artifacts: Path = ARTIFACTS, p4: Path = P4_SOURCES) -> Pipeline:
    """Return the committed pipeline of `lanes` lanes. Raises PipelineError if it is missing or stale."""
    if lanes not in COMPILED_LANES:
        have = ", ".join(map(str, COMPILED_LANES))
        raise PipelineError(f"lanes: {lanes} is not compiled; choose one of {have}")
    found = Pipeline(lanes, artifacts / f"peelsum_{lanes}.json", artifacts / f"peelsum_{lanes}.p4info.txtpb")
    reason = staleness(artifacts, p4)
    if reason:
        raise PipelineError(f"pipeline: {reason}; run `peelsum switch compile` (it needs {COMPILER})")
    return found


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
    built = digests(artifacts, "peelsum_*")
    foreign = sorted(
        name
        for name in built.keys() | manifest["artifacts"]
        if built.get(name) != manifest["artifacts"].get(name)
    )
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
    return {name: digest for name, digest in digests(p4, "**/*.p4").items() if not name.startswith("tofino/")}


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
    """Rebuild the generated sources, all pipelines and the manifest.

    Raises PipelineError if the compiler is missing or fails.
    """
    if shutil.which(COMPILER) is None:
        raise PipelineError(f"{COMPILER}: not found on PATH; install p4c, or keep the committed pipelines")
    write_generated(p4)
    artifacts.mkdir(parents=True, exist_ok=True)
    built = [_compile(lanes, artifacts, p4) for lanes in COMPILED_LANES]
    manifest = {
        "compiler": _version(),
        "sources": _sources(p4),
        "artifacts": digests(artifacts, "peelsum_*"),
    }
    (artifacts / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return built


def _compile(lanes: int, artifacts: Path, p4: Path) -> Pipeline:
    built = Pipeline(lanes, artifacts / f"peelsum_{lanes}.json", artifacts / f"peelsum_{lanes}.p4info.txtpb")
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

"""The P4 programs that tests run, the rivals', and what p4c makes of them.

To rebuild: `python tests/support/p4_programs.py`, where p4c-bm2-ss is on PATH.
"""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from peelsum.pipelines.artifacts import without_source_info

COMPILER = "p4c-bm2-ss"
TESTS = Path(__file__).parents[1]
RIVALS = TESTS.parent / "switch" / "rivals"
FOLDERS = [TESTS / "softswitch" / "p4runtime" / "p4", TESTS / "softswitch" / "p4", RIVALS]
MANIFEST = "manifest.json"


def sources(folder):
    """A folder's programs; without the list of lanes that some include."""
    return sorted(set(folder.glob("*.p4")) - {folder / "each_lane.p4"})


def digests(folder):
    """SHA-256 of each program, of what it includes and of all that was made of it, by file name."""
    found = [path for path in folder.glob("*.*") if path.name != MANIFEST]
    if folder == RIVALS:
        found += [RIVALS.parent / "p4" / name for name in ("core/lanes_h.p4", "v1model/lanes.p4")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(found)}


def program_in(path):
    """Return a compiled file's program: BMv2 JSON without the compiler's name, equal for equal compilers."""
    if path.suffix != ".json":
        return path.read_bytes()
    document = json.loads(path.read_text())
    document.pop("__meta__")
    return document


def build(source, folder, *options):
    """Compile a program into a folder: BMv2 JSON without positions, and P4Info where the source has one."""
    built, info = folder / f"{source.stem}.json", source.with_suffix(".p4info.txtpb")
    command = [COMPILER, "--Wdisable", *options, "-I", ".", "-o", built]
    if info.exists():
        command += ["--p4runtime-files", folder / info.name]
    # By its name alone: the compiler writes the path it was given into its output.
    subprocess.run([*command, source.name], cwd=source.parent, check=True)
    program = without_source_info(json.loads(built.read_text()))
    built.write_text(json.dumps(program, separators=(",", ":")) + "\n")


def compiler():
    """Return the compiler's version line; None if it is not on PATH."""
    if shutil.which(COMPILER) is None:
        return None
    done = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    return " ".join((done.stdout + done.stderr).split())


def main():
    for folder in FOLDERS:
        for source in sources(folder):
            build(source, folder)
        manifest = {"compiler": compiler(), "files": digests(folder)}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()

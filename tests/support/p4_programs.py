"""The P4 programs that tests run, and what p4c makes of them.

To rebuild: `python tests/support/p4_programs.py`, where p4c-bm2-ss is on PATH.
"""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

COMPILER = "p4c-bm2-ss"
FOLDERS = [Path(__file__).parents[1] / part / "p4" for part in ("softswitch/p4runtime", "softswitch")]
MANIFEST = "manifest.json"


def sources(folder):
    """A folder's programs."""
    return sorted(folder.glob("*.p4"))


def digests(folder):
    """SHA-256 of each program and of all that was made of it, by file name."""
    found = [path for source in sources(folder) for path in folder.glob(f"{source.stem}.*")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(found)}


def without_positions(node):
    if isinstance(node, dict):
        return {key: without_positions(value) for key, value in node.items() if key != "source_info"}
    return [without_positions(value) for value in node] if isinstance(node, list) else node


def program_in(path):
    """Return a compiled file's program: BMv2 JSON without the compiler's name, equal for equal compilers."""
    if path.suffix != ".json":
        return path.read_bytes()
    document = json.loads(path.read_text())
    document.pop("__meta__")
    return document


def build(source):
    """Compile a program in place: BMv2 JSON without positions, and P4Info where one is there."""
    built, info = source.with_suffix(".json"), source.with_suffix(".p4info.txtpb")
    command = [COMPILER, "--Wdisable", "-o", built.name]
    if info.exists():
        command += ["--p4runtime-files", info.name]
    # By its name alone: the compiler writes the path it was given into its output.
    subprocess.run([*command, source.name], cwd=source.parent, check=True)
    program = without_positions(json.loads(built.read_text()))
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
            build(source)
        manifest = {"compiler": compiler(), "files": digests(folder)}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()

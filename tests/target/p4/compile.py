"""Compiles the P4 programs beside it: `python tests/target/p4/compile.py`, where p4c-bm2-ss is installed."""

import json
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def without_source_info(node):
    if isinstance(node, dict):
        return {key: without_source_info(value) for key, value in node.items() if key != "source_info"}
    return [without_source_info(value) for value in node] if isinstance(node, list) else node


def compiled(source):
    """The BMv2 JSON text of a P4 program, without positions and paths."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        subprocess.run(
            ["p4c-bm2-ss", "--Wdisable", "-o", str(out), source.name], cwd=source.parent, check=True
        )
        return json.dumps(without_source_info(json.loads(out.read_text())), separators=(",", ":")) + "\n"


if __name__ == "__main__":
    for program in sorted(HERE.glob("*.p4")):
        program.with_suffix(".json").write_text(compiled(program))

"""The program these tests run comes from its source."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "p4" / "every_match_kind.p4"
COMPILER = "p4c-bm2-ss"


def without_positions(node):
    if isinstance(node, dict):
        return {key: without_positions(value) for key, value in node.items() if key != "source_info"}
    return [without_positions(value) for value in node] if isinstance(node, list) else node


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not on PATH")
def test_the_compiled_program_is_current(tmp_path):
    """To rebuild, run the command below in tests/p4runtime/p4 and take the positions out of the JSON."""
    built, info = tmp_path / "built.json", tmp_path / "built.p4info.txtpb"
    command = [COMPILER, "--arch", "v1model", SOURCE.name, "-o", built, "--p4runtime-files", info]
    subprocess.run(command, cwd=SOURCE.parent, check=True)
    found = json.loads(SOURCE.with_suffix(".json").read_text())
    wanted = without_positions(json.loads(built.read_text()))
    # Where the compiler writes its own version and the path it was given.
    for document in (found, wanted):
        document.pop("__meta__"), document.pop("program")
    assert found == wanted
    assert SOURCE.with_suffix(".p4info.txtpb").read_text() == info.read_text()

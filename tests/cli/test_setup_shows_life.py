"""`make setup` reports progress while pip works, and shows pip's output when it fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: In the place of python3: makes an environment whose pip does what PIP says.
PYTHON = f"""#!{sys.executable}
import os, pathlib, sys
if sys.argv[1:3] == ["-m", "venv"]:
    folder = pathlib.Path(sys.argv[3], "bin")
    folder.mkdir(parents=True)
    (folder / "pip").write_text("#!/bin/sh\\n" + os.environ["PIP"])
    (folder / "pip").chmod(0o755)
"""


@pytest.fixture
def setup(tmp_path):
    """Return a function that runs `make setup` with a shell script in place of pip."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def run(pip):
        return subprocess.run(
            # A `make VENV=... test` around this one exports its VENV.
            ["make", f"PYTHON={python}", "VENV=.venv", "setup"],
            cwd=tmp_path,
            env={**os.environ, "PIP": pip, "MAKEFLAGS": "BEAT_S=1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


def test_what_pip_said_is_shown_when_it_fails(setup, tmp_path):
    done = setup("echo Collecting numpy; echo 'ERROR: No matching distribution' >&2; exit 1\n")
    assert done.returncode == 2
    assert "ERROR: No matching distribution" in done.stderr
    assert not (tmp_path / ".venv/.installed").exists()

"""What commands of the pages write into the checkout is not offered to git."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not on PATH")
@pytest.mark.parametrize("folder", [".", "examples"])
def test_admissions_are_ignored(folder, tmp_path):
    """In a repository of its own, which has the project's rules and none of this machine's."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / folder).mkdir(exist_ok=True)
    for name in ("admission.json", "job.json"):
        (tmp_path / folder / name).touch()
    command = ["git", "-c", "core.excludesFile=/dev/null", "status", "--porcelain", "--untracked-files=all"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "admission.json" not in shown
    assert "job.json" in shown

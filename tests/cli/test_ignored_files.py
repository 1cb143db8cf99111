"""What commands of the pages write into the checkout is not offered to git."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not on PATH")
def test_admissions_are_ignored(tmp_path):
    """In a repository of its own, which has the project's rules and none of this machine's."""
    git = ["git", "-C", str(tmp_path), "-c", "core.excludesFile=/dev/null"]
    subprocess.run([*git, "init", "-q"], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    names = ["admission.json", "examples/admission.json", "job.json", "examples/job.json"]
    ignored = subprocess.run([*git, "check-ignore", *names], capture_output=True, text=True).stdout
    assert ignored.split() == names[:2]

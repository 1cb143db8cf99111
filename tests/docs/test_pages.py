"""Links of pages beside the site lead somewhere; pages of folders and results are made alike."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def committed(pattern):
    return subprocess.run(
        ["git", "-C", ROOT, "ls-files", pattern], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def headings(page):
    """Return the anchors that a code host gives a page's headings."""
    lines = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.MULTILINE)
    plain = [re.sub(r"\]\([^)]*\)|[`*\[]", "", line).strip().lower() for line in lines]
    return {re.sub(r"[^\w\- ]", "", line).replace(" ", "-") for line in plain}


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="needs git's files")
def test_every_link_leads_to_a_committed_file_and_a_heading():
    """In all Markdown and in notebooks, so that a code host shows no dead link."""
    files = {ROOT / name for name in committed("*")}
    folders = {folder for file in files for folder in file.parents}
    pages = [ROOT / name for pattern in ("*.md", "*.ipynb") for name in committed(pattern)]
    assert {ROOT / "README.md", DOCS / "index.md", ROOT / "examples/one_sum.ipynb"} <= set(pages)
    for page in pages:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
        for target, anchor in re.findall(r"\]\(\s*([^)\s#]*)#?([^)\s]*)\s*\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            linked = (page.parent / target).resolve() if target else page
            assert linked in files | folders, (page, target)
            assert not anchor or linked.suffix != ".md" or anchor in headings(linked), (page, target, anchor)


def test_tests_that_pages_name_are_there():
    for page in {*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *DOCS.rglob("*.md")} - {
        ROOT / "CHANGELOG.md"
    }:
        for file in re.findall(r"\btests/[\w/]+\.py\b", page.read_text()):
            assert (ROOT / file).exists(), (page, file)

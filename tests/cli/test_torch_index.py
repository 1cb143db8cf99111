"""Every instruction to install torch names pip's index of CPU builds."""

import re
from pathlib import Path

import pytest

from peelsum.cli.options import without_torch

ROOT = Path(__file__).parents[2]
INDEX = "https://download.pytorch.org/whl/cpu"
PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_that_install_torch_name_the_index_in_the_same_paragraph(page):
    for paragraph in page.read_text(encoding="utf-8").split("\n\n"):
        if re.search(r"pip install [^`\n]*\[[a-z,]*(torch|demo|training)", paragraph):
            assert INDEX in paragraph, paragraph


def test_pages_are_looked_at():
    assert any(".[torch]" in page.read_text(encoding="utf-8") for page in PAGES)


def test_commands_that_need_torch_name_it_too():
    for path in (ROOT / "cli/peelsum/cli").rglob("*.py"):
        if path.name != "options.py":
            assert not re.search(r"peelsum\[(torch|demo|training)\]", path.read_text(encoding="utf-8")), path
    assert "pip install 'peelsum[demo]'" in without_torch("demo")
    assert INDEX in without_torch("demo")

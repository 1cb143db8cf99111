"""The page on installing names every extra, and pages print commands that work in a checkout."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "docs/how-to/install.md"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]


def test_the_table_has_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"^\| `(\w+)` \|", INSTALL.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(project["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_installs_from_an_index_that_does_not_have_peelsum(page):
    if page not in (INSTALL, ROOT / "CHANGELOG.md"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"'peelsum\[|pip\s+install\s+peelsum\b", text), (
            "write '.[EXTRA]'; link to install.md"
        )

"""Links of pages beside the site lead somewhere; pages of folders and results are made alike."""

import re
import tomllib
from pathlib import Path
from textwrap import wrap

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = ("common", "switch", "host", "control_plane", "topology", "benchmarks", "cli")
#: Folders whose README has a picture.
FOLDERS = [*PACKAGES, "tests", "docs"]
#: Made by the build.
GENERATED = {DOCS / "reference/command-line.md"}


def test_links_lead_somewhere():
    """`make docs` checks those of the site's pages, and that each page is in a table of contents."""
    for page in (*ROOT.glob("*.md"), *ROOT.glob("*/README.md")):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
            linked = (page.parent / target).resolve()
            assert re.match(r"[a-z]+:", target) or linked.exists() or linked in GENERATED, (page, target)


def test_tests_that_pages_name_are_there():
    for page in {*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *DOCS.rglob("*.md")} - {
        ROOT / "CHANGELOG.md"
    }:
        for file in re.findall(r"\btests/[\w/]+\.py\b", page.read_text()):
            assert (ROOT / file).exists(), (page, file)


@pytest.mark.parametrize("name", ["accuracy", "codec", "performance", "simulation", "training"])
def test_a_page_of_results_opens_with_a_picture_and_three_sentences(name):
    """The experiments' pages have theirs in tests/benchmarks/test_page.py."""
    beginnings = ("# ", "![", "**What was measured.** ", "**What it shows.** ", "**Where we lose.** ")
    parts = (DOCS / f"results/{name}.md").read_text().split("\n\n")
    assert [begin for begin, part in zip(beginnings, parts, strict=False) if not part.startswith(begin)] == []


@pytest.mark.parametrize("folder", [*FOLDERS, "examples"])
def test_every_folder_has_a_page_of_its_own(folder):
    assert (ROOT / folder / "README.md").read_text().startswith("# ")


def layers_of(container):
    """Return the layers of a package's contract, highest first."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = (
        contract["layers"]
        for contract in tool["contracts"]
        if contract["type"] == "layers" and contract["containers"] == [container]
    )
    return [layer.replace("|", "│") for layer in layers]


def drawing():
    """Return a row for each layer, above those that it may import; the softswitch's own stand below."""
    rows = [line for layer in layers_of("peelsum") for line in wrap(layer, 80, subsequent_indent="  ")]
    return "\n".join([*rows, "", "in softswitch: " + " ► ".join(layers_of("peelsum.softswitch")), ""])


def test_the_page_draws_the_layers_that_are_checked():
    """The drawing in docs/explanation/rounds.md is that of pyproject.toml's import contracts."""
    page = (ROOT / "docs/explanation/rounds.md").read_text(encoding="utf-8")
    (drawn,) = re.findall(r"```text\n(.*?)```", page.partition("## Layers")[2], re.DOTALL)
    assert drawn == drawing(), f"put this into docs/explanation/rounds.md:\n{drawing()}"

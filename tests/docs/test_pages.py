"""Every page is reachable from the site's index, every relative link leads somewhere."""

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
API = DOCS / "reference/api"
#: Made by the build.
GENERATED = {
    DOCS / "reference/command-line.md",
    *(API / f"{package}.md" for package in tomllib.loads((API / "modules.toml").read_text())),
    *(rows.with_name("page.md") for rows in DOCS.glob("results/experiments/*/rows.csv")),
}
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *DOCS.rglob("*.md"))
    if page not in GENERATED
)


def entries(page):
    """The pages in the toctrees of a page."""
    for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.S):
        for line in block.splitlines():
            if line and not line.startswith(":"):
                yield from page.parent.glob(f"{line}.md")


def test_every_page_is_in_a_table_of_contents():
    reached, ahead = set(), [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached:
            reached.add(page)
            ahead += entries(page)
    assert reached | GENERATED == (set(DOCS.rglob("*.md")) | GENERATED) - {DOCS / "README.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
        if not re.match(r"[a-z]+:", target):
            linked = (page.parent / target).resolve()
            assert linked.exists() or linked in GENERATED, target
    for file in re.findall(r"\btests/[\w/]+\.py\b", text) if page.name != "CHANGELOG.md" else ():
        assert (ROOT / file).exists(), file


@pytest.mark.parametrize("name", ["accuracy", "codec", "performance", "simulation", "training"])
def test_a_page_of_results_opens_with_a_picture_and_three_sentences(name):
    """The experiments' pages have theirs in tests/experiments/test_pages.py."""
    beginnings = ("# ", "![", "**What was measured.** ", "**What it shows.** ", "**Where we lose.** ")
    parts = (DOCS / f"results/{name}.md").read_text().split("\n\n")
    assert [begin for begin, part in zip(beginnings, parts, strict=False) if not part.startswith(begin)] == []


@pytest.mark.parametrize("folder", [*FOLDERS, "examples"])
def test_every_folder_has_a_page_of_its_own(folder):
    assert (ROOT / folder / "README.md").read_text().startswith("# ")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folders_page_is_short_and_has_a_picture(folder):
    page = (ROOT / folder / "README.md").read_text()
    assert page.count("```") == 2
    assert len(page.splitlines()) <= 20


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

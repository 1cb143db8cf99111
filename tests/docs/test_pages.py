"""Links of pages beside the site lead somewhere; pages of folders and results are made alike."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from textwrap import wrap

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = ("common", "switch", "host", "control_plane", "topology", "benchmarks", "cli")
#: Folders whose README has a picture.
FOLDERS = [*PACKAGES, "tests", "docs"]


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


@pytest.mark.parametrize("name", ["accuracy", "codec", "failures", "performance", "simulation", "training"])
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

"""Every instruction to install torch names pip's index of CPU builds."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from peelsum.extras import missing

ROOT = Path(__file__).parents[2]
INDEX = "https://download.pytorch.org/whl/cpu"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]
SOURCES = sorted(ROOT.glob("*/peelsum/**/*.py"))
#: Its torch is the build for GPUs, which that index does not have.
FOR_GPUS = "gpu"


def extras_with_torch():
    """Return the extras that install torch, themselves or through another extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = {
        name: {re.split(r"[~<>=; ]", one)[0] for one in found}
        for name, found in project["optional-dependencies"].items()
    }
    reached = {"torch"}
    while True:
        more = {
            name
            for name, found in needs.items()
            for one in found
            if one == "torch" or reached & set(re.findall(r"[\w-]+", one.partition("[")[2]))
        }
        if more <= reached:
            return reached - {FOR_GPUS}
        reached |= more


NAMED = re.compile(rf"pip install [^`\n]*\[([a-z]+,)*({'|'.join(sorted(extras_with_torch()))})[],]")


def test_extras_that_install_torch_are_found():
    assert {"torch", "demo", "training", "rivals", "dev"} <= extras_with_torch()
    assert not {"cli", "plots", "experiments", "ops"} & extras_with_torch()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_that_install_torch_name_the_index_in_the_same_paragraph(page):
    for paragraph in page.read_text(encoding="utf-8").split("\n\n"):
        if NAMED.search(paragraph.replace("\n", " ")) and "CHANGELOG" not in page.name:
            assert INDEX in paragraph, paragraph


def test_pages_are_looked_at():
    assert any(".[torch]" in page.read_text(encoding="utf-8") for page in PAGES)


def texts(path):
    """Return a module's texts, an f-string's parts as one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(getattr(part, "value", "")) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_errors_and_docstrings_that_install_torch_name_it_too(path):
    for text in texts(path):
        if NAMED.search(text):
            assert INDEX in text or text.endswith("--extra-index-url "), text


def test_the_error_for_a_missing_torch_names_it():
    assert f"pip install 'peelsum[demo]' --extra-index-url {INDEX}" in missing("torch", "demo")
    assert INDEX not in missing("torch", FOR_GPUS)

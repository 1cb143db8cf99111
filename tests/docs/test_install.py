"""What is installed, and how: extras, pins, the container file, and instructions on pages and in errors."""

import json
import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "docs/how-to/install.md"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
#: pip's index of CPU builds of torch, without which pip fetches gigabytes.
INDEX = "https://download.pytorch.org/whl/cpu"
DEBIANS = "3.11.2"
FETCHERS = re.compile(r"\b(curl|wget|git|ADD|npm|cargo|apt-key|add-apt-repository)\b")


def extras_with_torch(extras=frozenset({"torch"})):
    """Return the extras that install torch, themselves or through another; `gpu` needs another index."""
    needs = {name: " ".join(each) for name, each in EXTRAS.items()}
    more = extras | {
        name
        for name, each in needs.items()
        if extras & set(re.findall(r"\w+", " ".join(re.findall(r"\[.*?\]", each))))
    }
    return extras - {"gpu"} if more == extras else extras_with_torch(more)


NAMED = re.compile(rf"pip install [^`\n]*\[([a-z]+,)*({'|'.join(sorted(extras_with_torch()))})[],]")


def test_the_table_has_every_extra():
    named = re.findall(r"^\| `(\w+)` \|", INSTALL.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(EXTRAS)


def test_pages_install_what_there_is_and_torch_from_the_index_of_cpu_builds():
    for page in {*PAGES} - {ROOT / "CHANGELOG.md"}:
        text = page.read_text()
        if page != INSTALL:
            assert not re.search(r"'peelsum\[|pip\s+install\s+peelsum\b", text), (
                f"{page}: write '.[EXTRA]'; link to install.md"
            )
        for paragraph in text.split("\n\n"):
            assert INDEX in paragraph or not NAMED.search(paragraph.replace("\n", " ")), (page, paragraph)


def test_every_pinned_version_takes_debian_s_python():
    """`make setup` installs them on Debian 12's own Python, as the README says."""
    pinned = [
        Requirement(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    refusals, checked = {}, 0
    for package in pinned:
        try:
            installed = metadata(package.name)
        except PackageNotFoundError:
            continue
        if not package.specifier.contains(installed["Version"], prereleases=True):
            continue  # this environment was not made from the constraints
        checked += 1
        if not SpecifierSet(installed.get("Requires-Python") or "").contains(DEBIANS):
            refusals[package.name] = installed["Requires-Python"]
    assert refusals == {}
    assert checked > 50


def test_the_container_file_is_one_that_engines_read_and_takes_packages_by_apt_and_pip():
    lines = (ROOT / "Containerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    instructions = [line.split(maxsplit=1) for line in text.splitlines() if line]
    assert instructions[0] == ["FROM", "docker.io/library/debian:bookworm-slim"]
    assert {word for word, _ in instructions} == {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "CMD"}
    assert [json.loads(rest) for word, rest in instructions if word == "CMD"] == [["peelsum", "demo"]]
    for word, rest in instructions:
        if word == "RUN":
            assert subprocess.run(["sh", "-n", "-c", rest], check=False).returncode == 0
        assert not FETCHERS.search(rest)
    (asked,) = re.findall(r"/src\[([a-z,]+)\]", text)
    assert set(asked.split(",")) <= set(EXTRAS)

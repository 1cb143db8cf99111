"""The versions that `make setup` installs run on Debian 12's own Python, as the README says."""

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
DEBIANS = "3.11.2"


def test_every_pinned_version_takes_debian_s_python() -> None:
    pinned = [Requirement(line) for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    wanted, checked = {}, 0
    for one in pinned:
        try:
            found = metadata(one.name)
        except PackageNotFoundError:
            continue
        if not one.specifier.contains(found["Version"], prereleases=True):
            continue  # this environment was not made from the constraints
        checked += 1
        if not SpecifierSet(found.get("Requires-Python") or "").contains(DEBIANS):
            wanted[one.name] = found["Requires-Python"]
    assert wanted == {}
    assert checked > 50

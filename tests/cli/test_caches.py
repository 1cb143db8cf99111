"""The cache of machine code in an installation that cannot be written to."""

import os
from pathlib import Path

import pytest

from peelsum.cli import caches
from peelsum.cli.caches import CACHE_DIR, keep_compiled

#: A folder in which nobody can make anything, root included.
NOWHERE = Path("/proc/self/nothing")


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_DIR, "x")  # so that it is put back
    monkeypatch.delenv(CACHE_DIR)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def chosen(monkeypatch, packages: list[Path], cache: Path) -> str | None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(caches, "_packages", lambda: packages)
    keep_compiled()
    return os.environ.get(CACHE_DIR)


def test_numba_finds_its_place_beside_the_modules_or_in_the_users_cache(monkeypatch, tmp_path):
    assert chosen(monkeypatch, [tmp_path], NOWHERE) is None
    assert chosen(monkeypatch, [tmp_path, NOWHERE], tmp_path / "not yet") is None


def test_numba_is_given_a_place_where_it_has_none(monkeypatch, tmp_path):
    assert chosen(monkeypatch, [tmp_path, NOWHERE], NOWHERE) == str(tmp_path / "peelsum" / "numba")


def test_a_place_that_was_chosen_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_DIR, "/chosen")
    assert chosen(monkeypatch, [NOWHERE], NOWHERE) == "/chosen"


def test_the_packages_with_loops_are_found():
    assert {place.name for place in caches._packages()} == {"transport", "codec"}

"""The changes of the mutation run: which are made, that each is one, and that the choice is repeatable."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import chosen, mutants

SOURCE = '''\
"""A docstring with 1 in it."""

def f(a: int, b, *rest) -> "1 + 1":
    """Nothing of 2 either."""
    if a < 3 and b:
        g(a, b.c)
        b.c = 4
        b.d = 5
    h(*rest, a)
    return max(a, b) + 1
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f.py"
    path.write_text(SOURCE)
    return path


def test_each_kind_is_found_and_nothing_in_words_or_annotations(file: Path) -> None:
    assert [(mutant.line, mutant.kind, mutant.change) for mutant in mutants(file)] == [
        (5, "comparison", "a < 3 -> (a <= 3)"),
        (5, "and/or", "a < 3 and b -> (a < 3 or b)"),
        (5, "condition", "a < 3 and b -> (not (a < 3 and b))"),
        (5, "constant", "3 -> 2"),
        (5, "constant", "3 -> 4"),
        (6, "arguments", "g(a, b.c) -> (g(b.c, a))"),
        (6, "removal", "g(a, b.c) -> pass"),
        (6, "order", "g(a, b.c) b.c = 4 -> b.c = 4 g(a, b.c)"),
        (7, "removal", "b.c = 4 -> pass"),
        (7, "constant", "4 -> 3"),
        (7, "constant", "4 -> 5"),
        (8, "removal", "b.d = 5 -> pass"),
        (8, "constant", "5 -> 4"),
        (8, "constant", "5 -> 6"),
        (9, "removal", "h(*rest, a) -> pass"),
        (10, "operator", "max(a, b) + 1 -> (max(a, b) - 1)"),
        (10, "constant", "1 -> 0"),
        (10, "constant", "1 -> 2"),
    ]


def test_a_change_is_of_its_place_and_of_nothing_else(file: Path) -> None:
    for mutant in mutants(file):
        before, after = SOURCE.splitlines(), mutant.applied(SOURCE.encode()).decode().splitlines()
        assert len(before) == len(after)
        differing = [line for line, pair in enumerate(zip(before, after, strict=True), 1) if len({*pair}) > 1]
        assert differing == ([6, 7] if mutant.kind == "order" else [mutant.line])


def test_the_choice_is_even_and_the_same_for_the_same_seed(file: Path) -> None:
    found = mutants(file)
    assert chosen(found, 8, "0") == chosen(found, 8, "0") != chosen(found, 8, "1")
    assert len({mutant.kind for mutant in chosen(found, 8, "0")}) == 8
    assert sorted(map(found.index, chosen(found, 99, "0"))) == list(range(len(found)))

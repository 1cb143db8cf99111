"""`make test` takes few of a `covering` test's parameters, but all required combinations of them."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from covering import covering


def together(rows: list[tuple[int, ...]], strength: int) -> set[tuple[tuple[int, int], ...]]:
    """Values that occur together, of every `strength` columns."""
    return {group for row in rows for group in combinations(enumerate(row), strength)}


@pytest.mark.parametrize(("strength", "most"), [(1, 7), (2, 35), (3, 84)])
def test_all_values_meet_in_few_rows(strength: int, most: int) -> None:
    rows = list(product(range(7), range(3), range(4)))
    chosen = [rows[number] for number in covering(rows, strength)]
    assert together(chosen, strength) == together(rows, strength)
    assert len(chosen) <= most < len(rows) + 1


def test_what_is_not_chosen_is_slow(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from suite_order import pytest_collection_modifyitems")
    pytester.makeini("[pytest]\nmarkers =\n  slow: s\n  covering(n): c")
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.covering(1)
        @pytest.mark.parametrize("a", range(4))
        @pytest.mark.parametrize("b", range(3))
        def test_one(a, b): pass
        @pytest.mark.parametrize("a", range(5))
        def test_two(a): pass
        """
    )
    pytester.runpytest("-m", "not slow").assert_outcomes(passed=4 + 5, deselected=8)
    pytester.runpytest().assert_outcomes(passed=12 + 5)

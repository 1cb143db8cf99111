"""Small changes to a source: their kinds, and that each changes one place."""

from __future__ import annotations

import ast

from run import changed, changes

SOURCE = '''\
"""A docstring with 1 in it."""
def f(a: int, b, *rest) -> "1 + 1":
    """Nothing of 2 either."""
    if a < 3 and b:
        g(a, b.c)
    return max(a, b) + 1
'''


def test_each_kind_is_made_in_one_place_and_none_in_annotations() -> None:
    before = ast.unparse(ast.parse(SOURCE)).splitlines()
    made = [changed(SOURCE, number)[1] for number, _ in enumerate(changes(ast.parse(SOURCE)))]
    differing = [
        [line.strip() for old, line in zip(before, text.splitlines(), strict=True) if old != line]
        for text in made
    ]
    assert differing == [
        ["if not (a < 3 and b):"],
        ["pass"],
        ["if a < 3 or b:"],
        ["if a <= 3 and b:"],
        ["if a < 4 and b:"],
        ["if a < 2 and b:"],
        ["g(b.c, a)"],
        ["return max(a, b) - 1"],
        ["return max(b, a) + 1"],
        ["return max(a, b) + 2"],
        ["return max(a, b) + 0"],
    ]

"""A small choice of a test's parameters in which every pair, or every single value, still occurs."""

from itertools import combinations


def covering(rows, strength):
    """Choose rows, by number, in which all values of any `strength` columns occur together that do in `rows`.

    Takes the row that adds most, the first of several: the same choice every time.
    """
    groups = [_groups(row, strength) for row in rows]
    missing = {group for row in groups for group in row}
    chosen = []
    while missing:
        best = max(range(len(rows)), key=lambda number: len(groups[number] & missing))
        chosen.append(best)
        missing -= groups[best]
    return sorted(chosen)


def _groups(row, strength):
    """The values of every `strength` columns, as (column, value)."""
    columns = list(enumerate(row))
    return set(combinations(columns, min(strength, len(columns))))

"""Rows of one point together: medians of numbers, and texts.

Intervals come from order statistics, which assume nothing about a distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from peelsum.experiments.experiment import Experiment, Point, Published
from peelsum.experiments.store import Row, number, text

#: The confidence that an interval should have.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """The median of some values, and an interval for the distribution's median."""

    median: float
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    confidence: float
    """The interval's confidence: under CONFIDENCE if there are fewer than six values."""
    count: int
    """Number of values."""


def summary(values: Sequence[float]) -> Summary:
    """Return median and interval of one value or more.

    The interval reaches from the k-th smallest to the k-th largest value, for the largest k with which it has
    CONFIDENCE. Without such a k it reaches from the smallest to the largest. Both ends are off with the
    binomial probability of fewer than k heads among n coins (David and Nagaraja, Order Statistics, 7.1).
    """
    ordered, count = sorted(values), len(values)
    k = 1
    while 2 * (k + 1) <= count and _confidence(count, k + 1) >= CONFIDENCE:
        k += 1
    return Summary(median(ordered), ordered[k - 1], ordered[-k], _confidence(count, k), count)


def _confidence(count: int, k: int) -> float:
    return 1 - math.ldexp(sum(math.comb(count, heads) for heads in range(k)), 1 - count)


@dataclass(frozen=True)
class Group:
    """The rows of one point."""

    point: Mapping[str, str]
    """Its parameters, as they are written."""
    figures: Mapping[str, Summary | str | None]
    """By column: a summary of numbers, a text, or None where no row has a figure."""
    modelled: bool
    """Whether the rows are modelled, not measured."""
    notes: Sequence[str]
    """Notes of the rows, each once."""

    def at(self, where: Point) -> bool:
        """Return whether the point has these values."""
        return all(self.point[name] == text(value) for name, value in where.items())


def grouped(experiment: Experiment, rows: Iterable[Row]) -> list[Group]:
    """Return the points' groups, ordered as in the experiment's sizes, parameter by parameter."""
    by_point: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_point.setdefault(tuple(row[name] for name in experiment.labels), []).append(row)
    order = _order(experiment)
    found = sorted(by_point.items(), key=lambda item: _place(item[0], order))
    return [
        _group(experiment, dict(zip(experiment.labels, point, strict=True)), mine) for point, mine in found
    ]


def ours(groups: Sequence[Group], published: Published) -> tuple[Group, Summary] | None:
    """Return the group and the figure that stand beside a published one; None if no row has it."""
    among = [
        (group, figure)
        for group in groups
        if group.at(published.where) and isinstance(figure := group.figures[published.column], Summary)
    ]
    take = max if published.take == "most" else min
    return take(among, key=lambda one: one[1].median, default=None)


def _group(experiment: Experiment, point: Mapping[str, str], rows: Sequence[Row]) -> Group:
    figures = {name: _figure([row[name] for row in rows if row[name]]) for name in experiment.figures}
    notes = list(dict.fromkeys(row["note"] for row in rows if row["note"]))
    return Group(point, figures, rows[0]["modelled"] == "True", notes)


def _figure(values: Sequence[str]) -> Summary | str | None:
    if not values:
        return None
    numbers = [number(value) for value in values]
    known = [one for one in numbers if one is not None]
    return summary(known) if len(known) == len(values) else ", ".join(dict.fromkeys(values))


def _order(experiment: Experiment) -> list[list[str]]:
    """Return every parameter's values in the order in which they are declared, numbers by size."""
    orders = []
    for name in experiment.parameters:
        values = experiment.values(name)
        plain = all(isinstance(value, int | float) for value in values)
        orders.append([text(value) for value in (sorted(values) if plain else values)])  # type: ignore[type-var]
    return orders


def _place(point: Sequence[str], order: Sequence[Sequence[str]]) -> list[int]:
    # Keys have no order, and stay in that in which they were measured.
    return [known.index(value) if value in known else -1 for value, known in zip(point, order, strict=False)]

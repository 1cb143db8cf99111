"""Rows of one point together: medians with intervals of numbers, and texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from peelsum.experiments.experiment import Experiment, Point, Published
from peelsum.experiments.statistics import Summary, summary
from peelsum.experiments.store import Row, number, text


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

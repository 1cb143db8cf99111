"""Definitions of experiments: parameters, a function that measures rows, plots, published figures.

The plan of a run has every point, several times, in a random order that a seed determines.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any, Literal

#: A parameter, or a figure of a row; None where a figure is not available. `measure` gets a tuple as a whole.
Value = str | int | float | bool | tuple[Any, ...] | None
Point = Mapping[str, Value]

SIZES = ("quick", "usual", "full")
#: Names of the columns that the harness itself writes.
RESERVED = (
    *("repetition", "seed", "size", "commit", "source", "started", "wall_s", "cpu_s", "load", "others"),
    *("attempt", "disturbed", "machine", "versions", "modelled", "note"),
)
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class ExperimentError(ValueError):
    """An experiment, or a file of rows, that cannot be used. The message is one line and names the field."""


@dataclass(frozen=True)
class Column:
    """A figure of a row."""

    meaning: str
    """Its meaning, with its unit."""
    modelled: bool = False
    """Whether it is computed from a model in every row, instead of measured."""


@dataclass(frozen=True)
class Size:
    """The points of an experiment, and how often each is measured."""

    grid: Sequence[Mapping[str, Any]]
    """For each part, the values of parameters; a part's points are all combinations of these.

    A value that is not a sequence is the only one.
    """
    repetitions: int = 5
    """How often each point is measured, each time with another seed."""


@dataclass(frozen=True)
class Plot:
    """A figure: a line for each value of `lines`, medians with their intervals."""

    name: str
    """The file's name without its ending."""
    x: str
    """A parameter."""
    y: str
    """A column."""
    lines: str = ""
    """The parameters, separated by spaces, whose values tell lines apart; "" draws one line."""
    where: Point = field(default_factory=dict)
    """Parameters whose values are fixed."""
    log: Literal["", "x", "y", "xy"] = ""
    """The logarithmic axes."""
    fill: Callable[[Any, Sequence[Any]], None] | None = None
    """Draws the points' groups into a Matplotlib figure, in place of lines."""

    @property
    def title(self) -> str:
        """What is drawn, along what, and the parameters whose values are fixed."""
        fixed = [f"{name} {value}" for name, value in self.where.items() if value is not None]
        said = f"{self.y} by {self.x}" + (f" ({', '.join(fixed)})" if fixed else "")
        return said.replace("_", " ")


@dataclass(frozen=True)
class Published:
    """A published figure, to be shown beside ours."""

    what: str
    """The quantity, and the system that was measured."""
    value: float
    """The figure."""
    source: str
    """Where it was published."""
    column: str
    """The column in which ours is."""
    where: Point = field(default_factory=dict)
    """The points among which ours is."""
    take: Literal["most", "least"] = "most"
    """Which of these points' medians is ours."""


@dataclass(frozen=True)
class Sentences:
    """The lessons of a run. A page opens with the first three, after its first figure."""

    measured: str
    """What was measured."""
    shows: str
    """What it shows."""
    loses: str
    """Where we lose."""
    does_not_show: str
    """What it does not show."""
    surprised: str
    """What surprised."""
    run: str
    """The run about which they were written: its date and command."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment. Raises ExperimentError, which names the field, where fields do not fit each other."""

    name: str = ""
    """Lower-case letters, digits and underscores; by default, the file's name without its ending."""
    title: str = ""
    """One line; by default, the first of the file's docstring."""
    about: str = ""
    """What is measured and how, in Markdown; by default, the rest of the docstring."""
    measure: Callable[..., Mapping[str, Value] | Iterable[Any]]
    """measure(seed=..., **parameters) returns a row: a mapping with a value for each column.

    It returns several rows if the experiment has `keys`. A row may add `note`, which says why a figure is not
    available, and repeat parameters.
    """
    columns: Mapping[str, Column]
    """The figures of a row."""
    sizes: Mapping[str, Size]
    """By name: "quick", "usual" and "full". "usual" is needed; the others default to it."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values, as in a grid, of parameters in the parts that do not name them."""
    plots: Sequence[Plot] = ()
    """The figures that are drawn."""
    published: Sequence[Published] = ()
    """Published figures."""
    modelled: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """Parameters' values at which a whole row is computed from a model, or simulated, not measured."""
    timed: bool = True
    """Whether other programs change its figures, so that disturbed rows are repeated."""
    sentences: Sentences | None = None
    """The lessons of a run."""
    keys: Sequence[str] = ()
    """The columns that tell the rows of one point apart, which are measured together."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The least and the most of parameters that are numbers."""
    choices: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """The values that other parameters may have."""
    needs: Sequence[str] = ()
    """Packages that must be installed."""

    def __post_init__(self) -> None:
        check(self)
        sizes = {name: self._whole(size) for name, size in self.sizes.items()}
        object.__setattr__(self, "sizes", sizes)

    def _whole(self, size: Size) -> Size:
        """Return a size whose parts have a sequence of values for every parameter."""
        parts = [{**part, **self.defaults, **part} for part in size.grid]
        grid = [{name: _several(values) for name, values in part.items()} for part in parts]
        return Size(grid, size.repetitions)

    @property
    def parameters(self) -> list[str]:
        """The names of all parameters, in the order of `measure`."""
        parts = [part for size in self.sizes.values() for part in size.grid]
        known = dict.fromkeys([*(name for part in parts for name in part), *self.defaults])
        order = list(inspect.signature(self.measure).parameters)
        return sorted(known, key=lambda name: order.index(name) if name in order else len(order))

    @property
    def labels(self) -> list[str]:
        """The names that tell rows apart: all parameters, then `keys`."""
        return [*self.parameters, *self.keys]

    @property
    def figures(self) -> dict[str, Column]:
        """The columns without `keys`."""
        return {name: column for name, column in self.columns.items() if name not in self.keys}

    def values(self, parameter: str) -> list[Value]:
        """Return the values that the sizes give a parameter."""
        parts = [part for size in self.sizes.values() for part in size.grid]
        return list(dict.fromkeys(value for part in parts for value in part.get(parameter, ())))

    def size(self, name: str) -> Size:
        """Return a size by name."""
        return self.sizes.get(name, self.sizes["usual"])

    def is_modelled(self, point: Point) -> bool:
        """Return whether the rows of a point are modelled."""
        return any(point.get(name) in values for name, values in self.modelled.items())


@dataclass(frozen=True)
class Task:
    """One row to be measured."""

    point: Point
    """The values of its parameters."""
    repetition: int
    """Which repetition of the point this is, from 0."""
    seed: int
    """The seed that `measure` gets."""


def plan(
    experiment: Experiment, size: str, seed: int, given: Mapping[str, Sequence[Value]] | None = None
) -> list[Task]:
    """Return the tasks of a run; equal arguments give equal plans. `given` replaces parameters' values.

    Every repetition measures all points once, in another order. Points of one repetition have the same seed.
    """
    chosen, random, tasks = experiment.size(size), Random(seed), list[Task]()
    parts = [{name: (given or {}).get(name, values) for name, values in part.items()} for part in chosen.grid]
    found = (dict(zip(part, values, strict=True)) for part in parts for values in product(*part.values()))
    once = {tuple(point.items()): point for point in found}
    for repetition in range(chosen.repetitions):
        order = list(once.values())
        random.shuffle(order)
        tasks += [Task(point, repetition, seed + repetition) for point in order]
    return tasks


def check(one: Experiment) -> None:
    """Raise ExperimentError for the first field that is wrong."""
    known = isinstance(one.name, str) and (not one.name or bool(_NAME.fullmatch(one.name)))
    _require(known, "name", one.name, "use a-z0-9_")
    _require(callable(one.measure), "measure", one.measure, "give a function")
    _check_columns(one)
    _check_sizes(one)
    for plot in one.plots:
        _require(bool(_NAME.fullmatch(plot.name)), "plots.name", plot.name, "use a-z0-9_")
        _require(plot.x in one.labels, "plots.x", plot.x, _known(one.labels))
        _require(plot.y in one.columns, "plots.y", plot.y, _known(one.columns))
        for name in (*plot.lines.split(), *plot.where):
            _require(name in one.labels, "plots.lines and plots.where", name, _known(one.labels))
    for published in one.published:
        _require(published.column in one.columns, "published.column", published.column, _known(one.columns))
        for name in published.where:
            _require(name in one.labels, "published.where", name, _known(one.labels))
    for kind in ("modelled", "ranges", "choices"):
        for name in getattr(one, kind):
            _require(name in one.parameters, kind, name, _known(one.parameters))
    for name in one.keys:
        _require(name in one.columns, "keys", name, _known(one.columns))


def _check_columns(one: Experiment) -> None:
    _require(bool(one.columns), "columns", "{}", "name at least one figure")
    for name, column in one.columns.items():
        _require(bool(_NAME.fullmatch(name)) and name not in RESERVED, "columns", name, "use another name")
        _require(isinstance(column, Column), f"columns.{name}", column, "give a Column")


def _check_sizes(one: Experiment) -> None:
    _require("usual" in one.sizes, "sizes", list(one.sizes), "add 'usual'")
    for name, size in one.sizes.items():
        _require(name in SIZES, "sizes", name, _known(SIZES))
        _require(isinstance(size, Size), f"sizes.{name}", size, "give a Size")
        count = size.repetitions
        _require(isinstance(count, int) and count >= 1, f"sizes.{name}.repetitions", count, "use 1 or more")
        _require(bool(size.grid), f"sizes.{name}.grid", size.grid, "give at least one part")
        for part in size.grid:
            for parameter, values in part.items():
                where = f"sizes.{name}.grid.{parameter}"
                new = parameter not in RESERVED and parameter not in one.columns
                _require(bool(_NAME.fullmatch(parameter)) and new, where, parameter, "use another name")
                _require(len(_several(values)) > 0, where, values, "give at least one value")


def _several(values: Any) -> Sequence[Value]:
    return values if isinstance(values, Sequence) and not isinstance(values, str) else (values,)


def _require(right: bool, where: str, value: Any, remedy: str) -> None:
    if not right:
        raise ExperimentError(f"{where}: {value!r} cannot be used; {remedy}")


def _known(names: Sequence[str] | Mapping[str, Any]) -> str:
    return f"use one of {', '.join(names)}"

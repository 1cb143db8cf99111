"""Definitions of experiments: parameters, a function that measures rows, plots; and the plan of a run."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import chain, product
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

#: A parameter, or a figure of a row; None where a figure is not available. `measure` gets a tuple as a whole.
Value = str | int | float | bool | tuple[Any, ...] | None
Point = Mapping[str, Value]
FOLDER = Path(__file__).parent / "experiments"
#: What to use in place of experiments that are gone.
_GONE = {
    "allreduce": "peelsum bench allreduce",
    "endpoint": "peelsum bench endpoint",
    "densities": "peelsum trace record --model MODEL, then peelsum trace show",
}


class ExperimentError(ValueError):
    """An experiment, or a file of rows, that cannot be used. The message is one line and names the field."""


@dataclass(frozen=True)
class Size:
    """Points, all combinations of each part's values, and how often each is measured."""

    grid: Sequence[Mapping[str, Any]]
    repetitions: int = 5


#: Colours by name: on a light page, and on a dark one.
COLOURS = {
    "paper": ("#ffffff", "#131416"),
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9198a1"),
    "grid": ("#dde1e6", "#2f353d"),
    "blue": ("#0550ae", "#79c0ff"),
    "teal": ("#12807a", "#39d0c8"),
    "orange": ("#bc4c00", "#f0883e"),
    "green": ("#2da44e", "#56d364"),
    "purple": ("#8250df", "#bc8cff"),
    "pink": ("#bf3989", "#f778ba"),
    "grey": ("#6e7781", "#8b949e"),
    "brown": ("#8a6100", "#d29922"),
}


def colour(name: str) -> str:
    """Return the colour of this name for light pages, as #rrggbb."""
    return COLOURS[name][0]


class Series(NamedTuple):
    """How a series is named and drawn: in one of COLOURS, and thicker if it is ours."""

    name: str
    colour: str
    dash: str = "-"
    ours: bool = False


#: Series that several figures share, by the values that name them in rows; rivals as their authors name them.
SERIES = {
    "peelsum": Series("peelsum", "blue", ours=True),
    "compact": Series("peelsum, compact", "blue", ours=True),
    "sketch": Series("peelsum, sketch", "teal", ours=True),
    "dense": Series("dense sum in the switch", "ink", ":"),
    "lhc": Series("LHC, as published", "orange"),
    "lhc_best": Series("LHC, fewest words", "orange", "--"),
    "lhc_fastest": Series("LHC, fastest table", "orange"),
    "omnireduce": Series("OmniReduce", "green"),
    "switchml": Series("SwitchML", "purple"),
    "atp": Series("ATP", "pink"),
    "ring": Series("NCCL ring", "grey", "--"),
    "gloo": Series("gloo", "brown"),
    "binomial": Series("binomial tree", "brown"),
    "sharded_server": Series("sharded servers", "green"),
}


@dataclass(frozen=True)
class Plot:
    """A figure: medians of `y` along `x`, with a line for each value of the parameters in `lines`."""

    name: str
    x: str
    """A parameter or column; bars may have several, separated by spaces."""
    y: str
    """A column; or several, separated by spaces, of which each is a series."""
    lines: str = ""
    where: Point = field(default_factory=dict)
    """Parameters with fixed values."""
    log: Literal["", "x", "y", "xy"] = ""
    finding: str | Callable[[Any], str] = ""
    """The title: a sentence in which `{series@x:.2f}` stands for a median, or a function that returns it.

    The function gets `page.Medians`, and returns "" if they do not show what the sentence says. In a sentence
    and in `setting`, a line's end and indentation count as one space.
    """
    setting: str = ""
    """The line below the title: what was measured or simulated, and how."""
    kind: Literal["lines", "bars"] = "lines"
    percent: Literal["", "x", "y", "xy"] = ""
    """The axes that show shares as percentages."""
    xlabel: str = ""
    ylabel: str = ""
    """The quantity and its unit; by default the name of `x`, and what the column means."""
    names: Mapping[str, str | Series] = field(default_factory=dict)
    """Names, or Series, of values in `x` and `lines`; series of one name are one line."""
    flat: Sequence[str] = ()
    """Series that do not depend on `x`: they are level lines."""
    reference: tuple[float, str] | None = None
    """A level to compare with, and its name."""
    floor: float | None = 0
    """Where a linear axis of `y` begins; None leaves it to the data."""
    height: float = 3.4
    """Inches without title and setting."""
    fill: Callable[[Any, Any], None] | None = None
    """Draws the DataFrame of `page.summaries` into a Matplotlib figure, in place of `kind`."""


def at(points: Any, where: Point) -> Any:
    """Return the rows of a DataFrame with these values of parameters."""
    for name, value in where.items():
        points = points[points[name] == text(value)]
    return points


def text(value: Any) -> str:
    """Return the text of a value in files and commands. Equal values have equal texts; None has ""."""
    if isinstance(value, tuple):
        return ",".join(map(text, value))
    return "" if value is None else " ".join(str(value).split())


@dataclass(kw_only=True)
class Experiment:
    """An experiment. Raises ExperimentError, which names the field, where fields do not fit each other."""

    measure: Callable[..., Mapping[str, Any] | Iterable[Any]]
    """measure(seed=..., **parameters) returns a row with all columns, or several rows if there are `keys`.

    A row may add `note`, which says why a figure is not available.
    """
    columns: Mapping[str, str]
    """The meaning of each figure of a row."""
    sizes: Mapping[str, Size]
    """By name: "quick", "usual" and "full". "usual" is needed; the others default to it."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of parameters in the parts of grids that do not name them."""
    plots: Sequence[Plot] = ()
    modelled_columns: Sequence[str] = ()
    """The columns that a model computes in every row; the others are measured."""
    modelled: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """Parameters' values at which a whole row is computed from a model, or simulated, not measured."""
    timed_models: bool = False
    """Whether those rows have measured times, too, such as a codec's, so that they are alone, too."""
    timed: bool = True
    """Whether other programs change its figures, so that disturbed rows are repeated, and rows are alone."""
    keys: Sequence[str] = ()
    """The columns that tell the rows of one point apart, which are measured together."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The least and the most of parameters that are numbers."""
    choices: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """The values that other parameters may have."""
    name: str = ""
    title: str = ""
    about: str = ""
    """By default, the file's name, the first line and the rest of its docstring."""

    def __post_init__(self) -> None:
        self.sizes = {
            name: Size([*map(self._part, size.grid)], size.repetitions) for name, size in self.sizes.items()
        }
        for name, size in self.sizes.items():
            if size.repetitions < 1 or not all(values for part in size.grid for values in part.values()):
                raise ExperimentError(f"sizes.{name}: has no points; give each parameter a value")
        if "usual" not in self.sizes:
            raise ExperimentError(f"sizes: {', '.join(self.sizes)} cannot be all; add 'usual'")
        known = [*self.parameters, *self.columns]
        plotted = ([*f"{plot.x} {plot.y} {plot.lines}".split(), *plot.where] for plot in self.plots)
        named: dict[str, Iterable[str]] = {
            "plots": chain(*plotted),
            "keys": self.keys,
            "modelled": self.modelled,
            "modelled_columns": self.modelled_columns,
            "ranges": self.ranges,
            "choices": self.choices,
        }
        for where, names in named.items():
            for name in names:
                if name not in known:
                    raise ExperimentError(
                        f"{where}: {name!r} is no parameter of measure and no column; use one of "
                        + ", ".join(known)
                    )

    def _part(self, part: Mapping[str, Any]) -> dict[str, Sequence[Value]]:
        """Return a part of a grid with a sequence of values for every parameter."""
        each = {**part, **self.defaults, **part}.items()
        return {name: values if isinstance(values, tuple | list) else (values,) for name, values in each}

    @property
    def parameters(self) -> list[str]:
        """The names of all parameters, in the order of `measure`."""
        names = {name for size in self.sizes.values() for part in size.grid for name in part}
        return [name for name in inspect.signature(self.measure).parameters if name in names]

    @property
    def labels(self) -> list[str]:
        """The names that tell rows apart: all parameters, then `keys`."""
        return [*self.parameters, *self.keys]

    @property
    def figures(self) -> list[str]:
        """The columns without `keys`."""
        return [name for name in self.columns if name not in self.keys]

    def values(self, parameter: str) -> list[Value]:
        """Return the values that the sizes give a parameter."""
        parts = [part for size in self.sizes.values() for part in size.grid]
        return list(dict.fromkeys(value for part in parts for value in part.get(parameter, ())))

    def size(self, name: str) -> Size:
        """Return the size of this name, or the usual one if there is none."""
        return self.sizes.get(name, self.sizes["usual"])

    def is_modelled(self, point: Point) -> bool:
        """Return whether the rows of a point are modelled."""
        return any(point.get(name) in values for name, values in self.modelled.items())


@dataclass(frozen=True)
class PlannedRow:
    """A point to be measured, the number of its repetition, from 0, and the seed that `measure` gets."""

    point: Point
    repetition: int
    seed: int


def plan(
    experiment: Experiment, size: str, seed: int, values: Mapping[str, Sequence[Value]] | None = None
) -> list[PlannedRow]:
    """Return the tasks of a run; equal arguments give equal plans. `values` replaces parameters' values.

    Every repetition measures all points once, in another order. Points of one repetition have the same seed.
    """
    chosen, random, tasks = experiment.size(size), Random(seed), list[PlannedRow]()
    parts = [{name: (values or {}).get(name, usual) for name, usual in part.items()} for part in chosen.grid]
    points = (dict(zip(part, cells, strict=True)) for part in parts for cells in product(*part.values()))
    # Parts may name the parameters in different orders.
    distinct = list({frozenset(point.items()): point for point in points}.values())
    for repetition in range(chosen.repetitions):
        order = list(distinct)
        random.shuffle(order)
        tasks += [PlannedRow(point, repetition, seed + repetition) for point in order]
    return tasks


def known() -> list[str]:
    """Return the names of our experiments."""
    return sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def find(name: str) -> Path:
    """Return an experiment's file by its name, or by the path of its file. Raises ExperimentError."""
    path = Path(name).resolve() if name.endswith(".py") else FOLDER / f"{name.replace('-', '_')}.py"
    if name in _GONE:
        raise ExperimentError(f"{name}: is gone; use {_GONE[name]}")
    if not path.is_file():
        names = ", ".join(known())
        raise ExperimentError(f"{name}: cannot be read; use the path of a file, or one of {names}")
    return path


def digest(file: Path) -> str:
    """Return the first 12 hexadecimal digits of a file's SHA-256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def load(file: Path) -> Experiment:
    """Return the experiment that a file defines as EXPERIMENT. Raises ExperimentError if it does not."""
    return _loaded(file, digest(file))


@cache
def _loaded(file: Path, version: str) -> Experiment:
    if file.parent == FOLDER:
        module = import_module(f"benchmarks.experiments.{file.stem}")  # as other experiments import it, too
    else:
        spec = spec_from_file_location(f"peelsum_experiment_{version}", file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = module_from_spec(spec)  # dataclasses look for their module there
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            where = f"{file.name}, line {error.lineno}"
            raise ExperimentError(f"{where}: {error.msg}; correct the line") from None
    experiment = vars(module).get("EXPERIMENT")
    if not isinstance(experiment, Experiment):
        raise ExperimentError(f"{file.name}: EXPERIMENT: is {experiment!r}; set it to an Experiment")
    title, _, about = (module.__doc__ or "").partition("\n\n")
    experiment.name = experiment.name or file.stem
    experiment.title = experiment.title or " ".join(title.split()).rstrip(".")
    experiment.about = experiment.about or about
    return experiment

"""The plan of a run: every point, several times, in a random order that a seed determines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from peelsum.experiments.experiment import Experiment, Point, Size, Value


@dataclass(frozen=True)
class Task:
    """One row to be measured."""

    point: Point
    """The values of its parameters."""
    repetition: int
    """Which repetition of the point this is, from 0."""
    seed: int
    """The seed that `measure` gets."""


def points(size: Size) -> list[Point]:
    """Return all points of a size, in the order of its grid, each once."""
    found = {tuple(point.items()): point for part in size.grid for point in _combined(part)}
    return list(found.values())


def _with(size: Size, given: Mapping[str, Sequence[Value]]) -> Size:
    parts = [{name: given.get(name, values) for name, values in part.items()} for part in size.grid]
    return Size(parts, size.repetitions)


def _combined(part: Mapping[str, Sequence[Value]]) -> Iterator[Point]:
    for values in product(*part.values()):
        yield dict(zip(part, values, strict=True))


def plan(
    experiment: Experiment, size: str, seed: int, given: Mapping[str, Sequence[Value]] | None = None
) -> list[Task]:
    """Return the tasks of a run; equal arguments give equal plans. `given` replaces parameters' values.

    Every repetition measures all points once, in another order. Points of one repetition have the same seed.
    """
    chosen, random, tasks = _with(experiment.size(size), given or {}), Random(seed), []
    for repetition in range(chosen.repetitions):
        order = points(chosen)
        random.shuffle(order)
        tasks += [Task(point, repetition, seed + repetition) for point in order]
    return tasks

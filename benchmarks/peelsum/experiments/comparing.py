"""Compares two files of rows, point by point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from peelsum.experiments.experiment import RESERVED, ExperimentError
from peelsum.experiments.store import PART, Row, names, number, read
from peelsum.experiments.summaries import Summary, summary

FILE = "rows.csv"


@dataclass(frozen=True)
class Difference:
    """A figure of one point in two files."""

    point: dict[str, str]
    """The parameters."""
    column: str
    a: Summary
    """The first file's figure."""
    b: Summary
    """The second file's figure."""
    ratio: float | None
    """The second median over the first; None if that is 0."""
    apart: bool
    """Whether the two intervals have no value in common."""


def compare(a: Path, b: Path) -> list[Difference]:
    """Return every number that both files have; of each file, the rows of its last commit.

    Raises ExperimentError if a path is neither a file of rows nor a folder with one.
    """
    first, second = _file(a), _file(b)
    if names(first) != names(second):
        raise ExperimentError(f"{second}: has other columns than {first}; compare runs of one experiment")
    return list(_differences(names(first), _last(read(first)), _last(read(second))))


def _differences(columns: list[str], a: Sequence[Row], b: Sequence[Row]) -> Iterator[Difference]:
    middle = columns.index(RESERVED[0])
    parameters, figures = columns[:middle], [one for one in columns[middle + len(RESERVED) :] if one != PART]
    for point in dict.fromkeys(tuple(row[name] for name in parameters) for row in a):
        for column in figures:
            both = [_summary(rows, parameters, point, column) for rows in (a, b)]
            if both[0] and both[1]:
                yield _difference(dict(zip(parameters, point, strict=True)), column, both[0], both[1])


def _difference(point: dict[str, str], column: str, a: Summary, b: Summary) -> Difference:
    ratio = b.median / a.median if a.median else None
    return Difference(point, column, a, b, ratio, a.high < b.low or b.high < a.low)


def _summary(
    rows: Sequence[Row], parameters: list[str], point: tuple[str, ...], column: str
) -> Summary | None:
    mine = [row[column] for row in rows if tuple(row[name] for name in parameters) == point]
    values = [value for text in mine if (value := number(text)) is not None]
    return summary(values) if values else None


def _last(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["commit"] == rows[-1]["commit"]]


def _file(path: Path) -> Path:
    return path / FILE if path.is_dir() else path

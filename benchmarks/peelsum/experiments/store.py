"""Rows in a CSV file that only grows: one line a row, written at once, so that a kill loses at most one.

The first line says what the file is, the second names the columns. A last line without its end was torn by a
kill, and is cut off.
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from peelsum.experiments.experiment import RESERVED, Experiment, ExperimentError, Point, Value

#: The version of the file's form.
VERSION = 1
#: The column that numbers the rows of one task, if it may have several.
PART = "part"
_TITLE = "# peelsum experiment rows, version"

#: A row as it was written: texts by column; "" is None.
Row = dict[str, str]


def text(value: Value) -> str:
    """Return a value as it is written; equal values have equal texts."""
    if isinstance(value, tuple):
        return ",".join(map(text, value))
    return "" if value is None else " ".join(str(value).split())


def value_of(written: str) -> Value:
    """Return the value that was written; a tuple of texts remains a text."""
    if "," in written:
        values = tuple(map(value_of, written.split(",")))
        return values if all(isinstance(one, int | float) for one in values) else written
    if written in ("", "True", "False"):
        return written == "True" if written else None
    return int(written) if re.fullmatch(r"-?\d+", written) else _float(written)


def _float(written: str) -> float | str:
    try:
        return float(written)
    except ValueError:
        return written


def number(value: str) -> float | None:
    """Return the number that a text is, or None. Booleans are 0 and 1."""
    try:
        return {"True": 1.0, "False": 0.0}.get(value) if value in ("True", "False") else float(value)
    except ValueError:
        return None


def header(experiment: Experiment) -> list[str]:
    """Return the names of a file's columns: the labels, the harness's own, the figures."""
    part = [PART] if experiment.keys else []
    return [*experiment.labels, *RESERVED, *part, *experiment.figures]


def key(experiment: Experiment, row: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a task is known by: rows with the same key are those of one task."""
    known_by = ("repetition", "seed", "commit", "source")
    return tuple(row[name] for name in (*experiment.parameters, *known_by))


def texts(experiment: Experiment, point: Point) -> Row:
    """Return a point's parameters as they are written; "" for those of other parts of the grid."""
    return {name: text(point.get(name)) for name in experiment.parameters}


def complete(experiment: Experiment, rows: Sequence[Row], ignoring: int) -> dict[tuple[str, ...], list[Row]]:
    """Return the last rows of each task, by its key without the last `ignoring` cells; tasks lack no part."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        whole = key(experiment, row)
        number = row.get(PART, "1 of 1").partition(" of ")[0]
        mine = [] if number == "1" else found.get(whole, [])
        found[whole] = [*mine, row]
    ends = {whole: mine for whole, mine in found.items() if _parts(mine[-1]) == len(mine)}
    return {whole[: len(whole) - ignoring]: mine for whole, mine in ends.items()}


def _parts(row: Row) -> int:
    return int(row.get(PART, "1 of 1").rpartition(" ")[2])


class Store:
    """The rows of an experiment, open for a run. Another run's `Store` of the same file raises.

    Raises ExperimentError if the file cannot be read or written, or has other columns.
    """

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path, self._names, self._experiment = path, header(experiment), experiment
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise ExperimentError(f"{path}: {error.strerror}; pass another --out") from None
        try:
            self._lock()
            self._cut_torn_line()
            self.rows = read(path) if path.stat().st_size else []
            self._begin(experiment)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, row: Row) -> None:
        """Append a row, in one write."""
        self._write([row[name] for name in self._names])
        self.rows.append(row)

    def tasks(self) -> dict[tuple[str, ...], list[Row]]:
        """Return the rows of each task that is complete, by its key: those that were written last."""
        return complete(self._experiment, self.rows, 0)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExperimentError(
                f"{self.path}: another run writes to it; wait for its end, or pass another --out"
            ) from None

    def _cut_torn_line(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        if not content.endswith(b"\n"):
            os.ftruncate(self._file.fileno(), content.rfind(b"\n") + 1)

    def _begin(self, experiment: Experiment) -> None:
        """Write what precedes the rows, or check that it is ours."""
        if self.path.stat().st_size == 0:
            self._file.write(f"{_TITLE} {VERSION}: {experiment.name}\n".encode())
        if self.path.read_bytes().count(b"\n") < 2:
            self._write(self._names)
        elif names(self.path) != self._names:
            raise ExperimentError(
                f"{self.path}: has other columns than {experiment.name}; remove it, or pass another --out"
            )

    def _write(self, cells: list[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        try:
            self._file.write(line.getvalue().encode())
            self._file.flush()
        except OSError as error:
            raise ExperimentError(f"{self.path}: {error.strerror}; make room, then run again") from None


def names(path: Path) -> list[str]:
    """Return the columns' names of a file of rows. Raises ExperimentError if it is none."""
    return _lines(path)[1]


def read(path: Path) -> list[Row]:
    """Return all rows of a file but a torn last one. Raises ExperimentError if it is none."""
    lines = _lines(path)
    for at, cells in enumerate(lines[2:], 3):
        if len(cells) != len(lines[1]):
            raise ExperimentError(
                f"{path}: line {at}: has {len(cells)} cells instead of {len(lines[1])}; remove the line"
            )
    return [dict(zip(lines[1], cells, strict=True)) for cells in lines[2:]]


def _lines(path: Path) -> list[list[str]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ExperimentError(f"{path}: {error.strerror}; pass a file of rows, or its folder") from None
    whole = content[: content.rfind(b"\n") + 1].decode(errors="replace")
    first, _, _ = whole.partition("\n")
    if not first.startswith(f"{_TITLE} "):
        raise ExperimentError(f"{path}: is not a file of an experiment's rows; pass another, or remove it")
    if not first.startswith(f"{_TITLE} {VERSION}:"):
        raise ExperimentError(f"{path}: {first[2:60]!r} is not version {VERSION}; run the experiment again")
    try:
        lines = list(csv.reader(io.StringIO(whole.partition("\n")[2]), strict=True))
    except csv.Error as error:
        raise ExperimentError(f"{path}: {error}; remove the line") from None
    return [[first], *(lines or [[]])]

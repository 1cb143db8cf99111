"""An experiment's rows in a CSV file: measure the tasks of a plan that have none yet, and read the rows.

Each task's rows are written as soon as it ends. Tasks with measured times run alone, the others in parallel.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import platform
import signal
import subprocess
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from benchmarks.experiment import Experiment, ExperimentError, PlannedRow, Value, digest, load, plan, text
from peelsum.processes.children import die_with_parent
from peelsum.reading import check_regular

#: Files on which figures depend, besides an experiment's own file; each row has the digest of that.
_SOURCES = (
    *("*.py", "*.p4", "*.p4inc", "switch/artifacts", "constraints.txt"),
    *(":!docs", ":!tests", ":!benchmarks/experiments"),
)
_TITLE = "# peelsum experiment rows, version 1:"
#: The columns that rows have beside parameters and figures.
RESERVED = (
    *("repetition", "seed", "size", "commit", "source", "started", "wall_s", "cpu_s", "load", "others"),
    *("attempt", "disturbed", "machine", "versions", "modelled", "note"),
)
#: What tells tasks apart beside parameters: a plan's, and a run's.
_OF_PLAN, _OF_RUN = ("repetition", "seed"), ("repetition", "seed", "commit", "source")
#: Fewer rows are measured before other processes have started.
_FEW = 8
#: The rows of a task, or the error that ended it, in one line.
Outcome = list[dict[str, str]] | str


@dataclass(frozen=True)
class Run:
    """Which rows to measure, and how."""

    file: Path
    """The experiment's file."""
    size: str = "usual"
    seed: int = 0
    values: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """Parameters' values, in place of the size's."""
    calm: float = 0.25
    """The largest share of the processors that others may use while a row is measured."""
    attempts: int = 3
    """How often a row is measured at most; if all were disturbed, the least disturbed counts."""
    again: bool = False
    """Whether to measure rows that were measured already."""

    @property
    def experiment(self) -> Experiment:
        """The experiment that the file defines."""
        return load(self.file)

    @property
    def tasks(self) -> list[PlannedRow]:
        """The plan."""
        return plan(self.experiment, self.size, self.seed, self.values)

    def key(self, task: PlannedRow) -> dict[str, str]:
        """Return the cells of a task's rows that tell it from others."""
        point = {name: text(task.point.get(name)) for name in self.experiment.parameters}
        of_task = {"repetition": text(task.repetition), "seed": text(task.seed)}
        return point | of_task | {"commit": commit(), "source": digest(self.file)}


def read(path: Path) -> pd.DataFrame:
    """Return all rows of a file, as texts. Raises ExperimentError if it is none."""
    try:
        check_regular(path)
        title, _, table = path.read_text(encoding="utf-8", errors="replace").partition("\n")
    except OSError as error:
        raise ExperimentError(f"{path}: {error.strerror}; pass a file of rows, or its folder") from None
    if not title.startswith(_TITLE):
        raise ExperimentError(f"{path}: is not a file of rows, version 1; pass another, or remove it")
    try:
        return pd.read_csv(io.StringIO(table), dtype=str, keep_default_na=False, index_col=False)
    except ValueError as error:
        raise ExperimentError(f"{path}: {' '.join(str(error).split())}; remove the line") from None


def rows_of_plan(run: Run, rows: pd.DataFrame, *, current_only: bool = False) -> pd.DataFrame:
    """Return the newest rows of each task of a plan, in the plan's order.

    By default they may be of any commit and any version of the experiment's file; with `current_only`, only
    rows of the present ones count.
    """
    key = [*run.experiment.parameters, *(_OF_RUN if current_only else _OF_PLAN)]
    rows = rows[rows["started"] == rows.groupby(key)["started"].transform("max")]
    rows = rows.drop_duplicates([*key, *run.experiment.keys], keep="last")
    return pd.DataFrame([run.key(task) for task in run.tasks], dtype=str)[key].merge(rows, on=key)[list(rows)]


def measure_missing(run: Run, path: Path, executor: Executor | None = None) -> Iterator[Any]:
    """Measure the tasks of the plan that have no rows in the file, and append their rows.

    Yield the number of these tasks, and then the Outcome of each. A task has a row if its parameters,
    repetition, seed, commit and source are those of the row. `executor` runs all tasks. By default, tasks
    without measured times run in processes, in parallel, and the others here, one after the other. Raises
    ExperimentError.
    """
    experiment = run.experiment
    with _only_writer(path):
        names = [*experiment.labels, *RESERVED, *experiment.figures]
        if not path.exists():
            _write(path, experiment.name, pd.DataFrame(columns=names))
        rows = read(path)
        if list(rows) != names:
            raise ExperimentError(f"{path}: has other columns than {experiment.name}; remove it")
        done = set(map(tuple, rows[[*experiment.parameters, *_OF_RUN]].to_numpy()))
        missing = [task for task in run.tasks if run.again or tuple(run.key(task).values()) not in done]
        yield len(missing)
        parallel = [task for task in missing if executor or not _is_timed(experiment, task)]
        parallel = parallel if executor or len(parallel) >= _FEW else []
        alone = (measured(run, commit(), task) for task in missing if task not in parallel)
        for outcomes in (_in_parallel(run, parallel, executor), alone):
            for outcome in outcomes:
                if isinstance(outcome, list):
                    rows = pd.concat([rows, pd.DataFrame(outcome)[names]])
                    _write(path, experiment.name, rows)
                yield outcome


def _write(path: Path, name: str, rows: pd.DataFrame) -> None:
    """Replace the file by one with these rows, so that a kill loses no row and leaves no half of one."""
    new = path.with_suffix(".new")
    table = rows.to_csv(index=False, lineterminator="\n")
    try:
        new.write_text(f"{_TITLE} {name}\n{table}", encoding="utf-8")
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise ExperimentError(f"{path}: {error.strerror}; pass another --out") from None


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Make the folder of a file, and lock it for one run."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        reason = "another run writes to it" if isinstance(error, BlockingIOError) else error.strerror
        raise ExperimentError(f"{path}: {reason}; pass another --out") from None
    try:
        yield
    finally:
        os.close(folder)


def measured(run: Run, at_commit: str, task: PlannedRow) -> Outcome:
    """Measure a task, again if it was disturbed and its size repeats points. It may raise anything."""
    experiment = run.experiment
    timed = _is_timed(experiment, task)
    attempts = run.attempts if timed and experiment.size(run.size).repetitions > 1 else 1
    tries = []
    try:
        for attempt in range(1, attempts + 1):
            began, span = datetime.now(UTC), Span()
            rows = checked(experiment, experiment.measure(seed=task.seed, **task.point))
            # Rows without measured times run side by side, so that each would count the others.
            conditions = span.conditions() | ({} if timed else {"others": ""})
            others = float(conditions["others"] or 0)
            conditions |= {"attempt": f"{attempt} of {attempts}", "disturbed": text(others > run.calm)}
            conditions |= {"started": began.isoformat(timespec="seconds"), "size": run.size}
            conditions |= {"modelled": text(experiment.is_modelled(task.point))}
            conditions |= run.key(task) | {"commit": at_commit}
            cells = [{name: text(cell) for name, cell in row.items()} | conditions for row in rows]
            tries.append((others, cells))
            if others <= run.calm:
                break
    except Exception as error:
        # Our own errors say what to do; the names of others say what they are, and the line where.
        reason = " ".join(str(error).split())
        if type(error).__module__.startswith(("peelsum.", "benchmarks.")):
            return reason
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == run.file.resolve()]
        place = f"{run.file.name}, line {lines[-1]}: " if lines else ""
        return f"{place}{type(error).__name__}: {reason}"
    return min(tries, key=lambda attempt: attempt[0])[1]


def checked(experiment: Experiment, result: Any) -> list[dict[str, Any]]:
    """Return the rows that `measure` returned. Raises ExperimentError, which names a column that is wrong."""
    rows = [result] if isinstance(result, Mapping) or not experiment.keys else list(result)
    for row in rows:
        if not isinstance(row, Mapping):
            raise ExperimentError(f"measure: returned {type(row).__name__}; return a dict of all columns")
        if wrong := {*experiment.columns} ^ ({*row} - {*experiment.parameters, "note"}):
            names = ", ".join(sorted(wrong))
            raise ExperimentError(
                f"measure: {names}: is only in `columns` or only in the row; put it in both"
            )
    return [{"note": None, **row} for row in rows]


def _is_timed(experiment: Experiment, task: PlannedRow) -> bool:
    return experiment.timed and (experiment.timed_models or not experiment.is_modelled(task.point))


def _in_parallel(run: Run, tasks: Sequence[PlannedRow], executor: Executor | None) -> Iterator[Outcome]:
    """Yield what an executor measures, in any order; a task whose process ended has failed."""
    if not tasks:
        return
    before = set(active_children())
    pool = executor or ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), initializer=_begin)
    try:
        for future in as_completed([pool.submit(measured, run, commit(), task) for task in tasks]):
            error = future.exception()
            yield f"{type(error).__name__}: {error}" if error else future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - before:
            process.terminate()  # a row may take minutes
        raise
    pool.shutdown()


def _begin() -> None:
    """End with the parent, and without words at Ctrl-C."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Span:
    """A span of time on this machine: `Span()` begins it, `conditions` ends it."""

    def __init__(self) -> None:
        self._began = self._clocks()

    @staticmethod
    def _clocks() -> tuple[float, ...]:
        """Return seconds: by the clock, of this process with its ended children, and of all processors."""
        ticks = psutil.cpu_times()._asdict()
        worked = ("user", "nice", "system", "irq", "softirq", "steal")
        busy_s = sum(ticks.get(name, 0) for name in worked)
        return time.monotonic(), sum(psutil.Process().cpu_times()[:4]), busy_s

    def conditions(self) -> dict[str, str]:
        """Return what a row says of its machine, and of this span: seconds, load, and what others used."""
        wall_s, cpu_s, busy_s = (
            now - before for now, before in zip(self._clocks(), self._began, strict=True)
        )
        others = (busy_s - cpu_s) / max(wall_s, 1e-9) / (os.cpu_count() or 1)
        return {
            "wall_s": f"{wall_s:.3f}",
            "cpu_s": f"{cpu_s:.3f}",
            "load": f"{os.getloadavg()[0]:.2f}",
            "others": f"{min(max(others, 0.0), 1.0):.3f}",
            **machine(),
        }


@cache
def machine() -> dict[str, str]:
    """Return processor, number of cores and system; and versions of what figures depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = [*names, platform.machine()][0]
    packages = [name for name in ("peelsum", "numpy", "numba", "torch") if find_spec(name)]
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)]
    system = f"{os.cpu_count()} cores of {processor}, {platform.system()} {platform.release()}"
    return {"machine": system, "versions": ", ".join(versions)}


@cache
def commit() -> str:
    """Return the checkout's last commit; with `+` and a digest of changes, if there are any."""

    def git(*arguments: str) -> str:
        # In a group of its own, which Ctrl-C does not reach.
        command = ["git", "-C", str(Path(__file__).parents[1]), *arguments, "--", *_SOURCES]
        return subprocess.run(command, capture_output=True, text=True, check=True, process_group=0).stdout

    try:
        head, changes = git("log", "-1", "--abbrev=10", "--format=%h").strip(), git("diff", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return version("peelsum")
    return f"{head}+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else head

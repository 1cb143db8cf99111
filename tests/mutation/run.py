"""Change the program in small ways, one at a time, and count how many changes the tests beside it notice.

    python tests/mutation/run.py [--area wire] [--sample 12] [--seed 0] [--jobs 2] [--json results.jsonl]

The changes are made in copies of the package folders, put first on PYTHONPATH; the checkout stays as it is.
With --json, results are kept, and a later run goes on from them while sources and tests are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from mutants import Mutant, chosen, mutants

ROOT = Path(__file__).parents[2]
FOLDERS = ("common", "switch", "host", "control_plane", "topology", "benchmarks", "cli")
#: What pytest ends with. A change that keeps conftest.py from loading is noticed too: 4, a usage error.
PASSED, INTERNAL_ERROR, NO_TESTS = 0, 3, 5


@dataclass(frozen=True)
class Area:
    """Files that are changed, as a pattern in the checkout, and the tests that should notice.

    Those `in_python` run first, with compiled loops as Python: compiling takes longer than they do.
    """

    sources: str
    tests: tuple[str, ...]
    in_python: tuple[str, ...] = ()


def _tests(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


AREAS = {
    "wire": Area("switch/peelsum/wire/*.py", ("tests/wire",)),
    "spec": Area("switch/peelsum/spec/*.py", ("tests/behaviour", "tests/attack")),
    "transport": Area(
        "host/peelsum/transport/*.py",
        ("tests/transport",),
        _tests(
            "transport",
            "endpoint retransmission server server_rows congestion two_levels_at_hosts virtual_network",
        ),
    ),
    "control": Area("control_plane/peelsum/control/*.py", ("tests/control",)),
    "p4runtime": Area("switch/peelsum/**/p4runtime/*.py", ("tests/p4runtime",)),
    "compress": Area(
        "host/peelsum/compress/**/*.py", ("tests/compress", "tests/torch/test_kept_between_steps.py")
    ),
    "allreduce": Area(
        "host/peelsum/allreduce/*.py",
        _tests(
            "allreduce",
            "plan_agreement words in_place precision local_summation random_jobs many_sizes sketch_size "
            "memory",
        ),
    ),
    "codec": Area(
        "host/peelsum/codec/[!g]*.py",  # those of the GPU need one
        _tests("codec", "segments block_scales fixed_point index sketch")
        + _tests("allreduce", "random_jobs"),
    ),
    "torch": Area(
        "host/peelsum/torch/*.py",
        _tests(
            "torch",
            "arguments hook_training process_group state sum_queue reductions waiting_buckets "
            "switch_seat strategy_training kept_between_steps",
        ),
    ),
    "simulation": Area(
        "topology/peelsum/simulation/*.py", _tests("simulation", "links packet_level rivals scenario_files")
    ),
    "softswitch": Area(
        "switch/peelsum/softswitch/[cr]*/*.py",  # the compiler, and what its code runs with
        _tests(
            "softswitch",
            "arithmetic expressions programs replication stacks state table_entries hashes limbs loader "
            "lookup_model packets_again queues register_access router widths",
        ),
    ),
    "cli": Area("cli/peelsum/cli/**/*.py", ("tests/cli/test_wrong_sums.py",)),
    "topology": Area("topology/peelsum/topology/description.py", ("tests/topology/test_description.py",)),
}


@dataclass(frozen=True)
class Result:
    """What became of one change. fate: killed, survived or timed out; key: of it, its sources and tests."""

    key: str
    area: str
    place: str
    kind: str
    change: str
    fate: str
    seconds: float


class Bench:
    """A copy of the package folders in which one change at a time is made and tested."""

    def __init__(self, folder: Path) -> None:
        self._copy, self._rest = folder / "copy", folder / "rest"
        self._rest.mkdir(parents=True)

    def run(self, area: Area, mutant: Mutant | None, limit_s: float) -> tuple[int | None, str]:
        """Return the exit status of the area's tests, None after a timeout, and their output."""
        shutil.rmtree(self._copy, ignore_errors=True)
        for folder in FOLDERS:  # with what is compiled, and with the times by which that is known
            shutil.copytree(ROOT / folder, self._copy / folder)
        if mutant is not None:
            path = self._copy / mutant.path.relative_to(ROOT)
            path.write_bytes(mutant.applied(path.read_bytes()))
        if area.in_python:
            command = self._command(area.in_python, "not bmv2 and not service and not own_code")
            command += ["-p", "loops_in_python"]
            status, said = _ended(command, self._rest, self._environment(), limit_s)
            if status != PASSED:
                return status, said
        return _ended(self._command(area.tests, "not bmv2"), self._rest, self._environment(), limit_s)

    def _command(self, tests: Sequence[str], named: str) -> list[str]:
        options = ["-q", "-x", "-m", "not slow", "-k", named, "--hypothesis-seed=0"]
        options += ["-p", "no:cacheprovider", "-p", "no:xdist"]
        where = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
        return [sys.executable, "-m", "pytest", *options, *where, *(str(ROOT / one) for one in tests)]

    def _environment(self) -> dict[str, str]:
        folders = [*(str(self._copy / folder) for folder in FOLDERS), str(ROOT / "tests/support")]
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(folders),
            "XDG_CACHE_HOME": str(self._rest / "cache"),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._rest / "hypothesis"),
            "TMPDIR": str(self._rest),
            "PYTHONHASHSEED": "0",
        }


class StoppedError(Exception):
    """The run ends before its time; a change that is being tried has no result."""


class _Children:
    """Running commands, which end with this process."""

    def __init__(self) -> None:
        self._lock, self._running, self._stopped = threading.Lock(), set[subprocess.Popen[str]](), False

    def add(self, child: subprocess.Popen[str]) -> None:
        with self._lock:
            self._running.add(child)
            if self._stopped:
                os.killpg(child.pid, signal.SIGKILL)

    def remove(self, child: subprocess.Popen[str]) -> None:
        """Forget a command that has ended. Raises StoppedError if all had to."""
        with self._lock:
            self._running.discard(child)
            if self._stopped:
                raise StoppedError

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for child in self._running:
                os.killpg(child.pid, signal.SIGKILL)


_children = _Children()


def _ended(
    command: list[str], folder: Path, environment: dict[str, str], limit_s: float
) -> tuple[int | None, str]:
    """A command's status and output; if it takes longer, it ends with all that it started."""
    running = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    _children.add(running)
    try:
        said, _ = running.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
        _children.remove(running)
    return running.returncode, said


def _fingerprint(area: Area) -> str:
    """Return a digest of the area's tests and sources, on which the result of a mutant depends."""
    places = [ROOT / one for one in (*area.tests, "tests/support")]
    files = [path for one in places for path in ([one] if one.is_file() else one.rglob("*.py"))]
    files += ROOT.glob(area.sources)
    contents = b"\0".join(path.read_bytes() for path in sorted(files))
    return hashlib.sha256(contents).hexdigest()


def _key(mutant: Mutant, fingerprint: str) -> str:
    parts = (fingerprint, str(mutant.path.relative_to(ROOT)), str(mutant.start), str(mutant.end), mutant.text)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _place(mutant: Mutant) -> str:
    return f"{mutant.path.relative_to(ROOT)}:{mutant.line}"


class Run:
    """Benches side by side, and the results that there are already."""

    def __init__(self, jobs: int, kept: Path | None, folder: Path) -> None:
        self._kept, self._known = kept, _known(kept)
        self._benches: SimpleQueue[Bench] = SimpleQueue()
        for number in range(jobs):
            self._benches.put(Bench(folder / str(number)))
        self._threads = ThreadPoolExecutor(jobs)

    def stop(self) -> None:
        """End all that runs, with what it started."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        _children.stop()
        self._threads.shutdown()

    def area(self, name: str, area: Area, sample: int, seed: int) -> Iterator[Result]:
        """Yield the results of a sample of mutants. The tests must first pass without any."""
        found = [mutant for path in sorted(ROOT.glob(area.sources)) for mutant in mutants(path)]
        taken = chosen(found, sample or len(found), f"{seed} {name}")
        fingerprint = _fingerprint(area)
        known = [self._known.get(_key(mutant, fingerprint)) for mutant in taken]
        yield from (result for result in known if result is not None)
        left = [mutant for mutant, result in zip(taken, known, strict=True) if result is None]
        print(f"{name}: {len(left)} of {len(found)} changes to try", file=sys.stderr, flush=True)
        if left:
            limit_s = self._unchanged(area)
            yield from self._threads.map(lambda one: self._tried(name, area, one, fingerprint, limit_s), left)

    def _unchanged(self, area: Area) -> float:
        """How long the tests may take with a change in the program, in seconds."""
        started = time.monotonic()
        status, said = self._on_a_bench(area, None, 3600.0)
        if status != PASSED:
            raise SystemExit(f"{', '.join(area.tests)}: fail without any change; mend that first\n{said}")
        return 60.0 + 5 * (time.monotonic() - started)

    def _tried(self, name: str, area: Area, mutant: Mutant, fingerprint: str, limit_s: float) -> Result:
        started = time.monotonic()
        status, said = self._on_a_bench(area, mutant, limit_s)
        if status in (INTERNAL_ERROR, NO_TESTS):
            raise SystemExit(f"{_place(mutant)}: pytest ended with {status}\n{said}")
        fate = {None: "timed out", PASSED: "survived"}.get(status, "killed")
        key, seconds = _key(mutant, fingerprint), round(time.monotonic() - started, 1)
        result = Result(key, name, _place(mutant), mutant.kind, mutant.change, fate, seconds)
        if self._kept is not None:
            with self._kept.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
        print(f"{result.fate}: {result.place}: {result.change}", file=sys.stderr, flush=True)
        return result

    def _on_a_bench(self, area: Area, mutant: Mutant | None, limit_s: float) -> tuple[int | None, str]:
        bench = self._benches.get()
        try:
            return bench.run(area, mutant, limit_s)
        finally:
            self._benches.put(bench)


def _known(kept: Path | None) -> dict[str, Result]:
    if kept is None or not kept.exists():
        return {}
    results = [Result(**json.loads(line)) for line in kept.read_text().splitlines()]
    return {result.key: result for result in results}


def _table(results: Sequence[Result]) -> str:
    lines = ["| area | mutants | killed | timed out | survived | score |", "|---|---|---|---|---|---|"]
    for area in dict.fromkeys(result.area for result in results):
        fates = Counter(result.fate for result in results if result.area == area)
        count = fates.total()
        score = 1 - fates["survived"] / count
        numbers = (count, fates["killed"], fates["timed out"], fates["survived"])
        lines.append(f"| {area} | {' | '.join(map(str, numbers))} | {score:.0%} |")
    survivors = [f"{one.place}: {one.kind}: {one.change}" for one in results if one.fate == "survived"]
    return "\n".join([*lines, "", *survivors])


def main() -> None:
    """Print a table by area, and every change that no test noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--area", action="append", choices=AREAS, help="one, or several; all if not given")
    parser.add_argument("--sample", type=int, default=12, help="changes an area; 0: all of them")
    parser.add_argument("--seed", type=int, default=0, help="which changes are chosen")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="changes tested at a time")
    parser.add_argument("--json", type=Path, help="file of results, a line each, to go on from")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="peelsum-mutants-") as folder:
        run = Run(given.jobs, given.json, Path(folder))
        areas = {name: AREAS[name] for name in given.area or AREAS}
        try:
            found = [run.area(name, area, given.sample, given.seed) for name, area in areas.items()]
            print(_table([one for results in found for one in results]))
        finally:
            run.stop()


if __name__ == "__main__":
    main()

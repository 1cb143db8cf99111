"""Change the program in small ways, one at a time, and count how many changes the tests beside it notice.

    python tests/mutation/run.py [--area wire] [--sample 12] [--seed 0]

The changes are made in copies of the package folders, put first on PYTHONPATH; the checkout stays as it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants import Mutant, chosen, mutants

ROOT = Path(__file__).parents[2]
FOLDERS = ("common", "switch", "host", "control_plane", "topology", "cli")
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


_CODEC = _tests("codec", "segments block_scales fixed_point index sketch") + _tests(
    "allreduce", "random_jobs"
)
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
    "codec": Area("host/peelsum/codec/*.py", _CODEC),
    "devices": Area("host/peelsum/codec/[cr]*/*.py", _CODEC),  # the host's: that of the GPU needs one
    "torch": Area(
        "host/peelsum/torch/*.py",
        _tests(
            "torch",
            "arguments hook_training process_group state sum_queue reductions waiting_buckets "
            "switch_seat strategy_training kept_between_steps",
        ),
    ),
    "simulation": Area(
        "topology/peelsum/simulation/*.py", _tests("simulation", "links packet_level scenario_files")
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


def run_tests(area: Area, mutant: Mutant | None, folder: Path, limit_s: float) -> int | None:
    """Run an area's tests with a change; return pytest's status, or None after `limit_s` seconds."""
    copy, rest = folder / "copy", folder / "rest"
    rest.mkdir(exist_ok=True)
    shutil.rmtree(copy, ignore_errors=True)
    for name in FOLDERS:  # with what is compiled, and with the times by which that is known
        shutil.copytree(ROOT / name, copy / name)
    if mutant is not None:
        (copy / mutant.path.relative_to(ROOT)).write_text(mutant.source())
    folders = [*(str(copy / name) for name in FOLDERS), str(ROOT / "tests/support")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(folders),
        "XDG_CACHE_HOME": str(rest / "cache"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(rest / "hypothesis"),
        "TMPDIR": str(rest),
        "PYTHONHASHSEED": "0",
    }
    status: int | None = PASSED
    if area.in_python:
        command = _command(area.in_python, "not bmv2 and not service and not own_code")
        status = _ended([*command, "-p", "loops_in_python"], rest, environment, limit_s)
    if status != PASSED:
        return status
    return _ended(_command(area.tests, "not bmv2"), rest, environment, limit_s)


def _command(tests: Sequence[str], named: str) -> list[str]:
    options = ["-q", "-x", "-m", "not slow", "-k", named, "--hypothesis-seed=0"]
    options += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    where = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    return [sys.executable, "-m", "pytest", *options, *where, *(str(ROOT / one) for one in tests)]


def _ended(command: list[str], folder: Path, environment: dict[str, str], limit_s: float) -> int | None:
    """Return a command's status, None if it takes longer. It ends with all that it started."""
    running = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=sys.stderr, stderr=sys.stderr, start_new_session=True
    )
    try:
        return running.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


@dataclass(frozen=True)
class Result:
    """What became of one change. fate: killed, survived or timed out."""

    area: str
    mutant: Mutant
    fate: str

    def __str__(self) -> str:
        place = f"{self.mutant.path.relative_to(ROOT)}:{self.mutant.line}"
        return f"{self.fate}: {place}: {self.mutant.kind}: {self.mutant.change}"


def results_of(name: str, sample: int, seed: int, folder: Path) -> Iterator[Result]:
    """Yield the results of a sample of an area's mutants. The tests must first pass without any."""
    area = AREAS[name]
    candidates = [mutant for path in sorted(ROOT.glob(area.sources)) for mutant in mutants(path)]
    taken = chosen(candidates, sample or len(candidates), f"{seed} {name}")
    print(f"{name}: {len(taken)} of {len(candidates)} changes to try", file=sys.stderr, flush=True)
    started = time.monotonic()
    if run_tests(area, None, folder, 3600.0) != PASSED:
        raise SystemExit(f"{', '.join(area.tests)}: fail without any change; mend that first")
    limit_s = 60.0 + 5 * (time.monotonic() - started)
    for mutant in taken:
        result = Result(name, mutant, fate_of(run_tests(area, mutant, folder, limit_s)))
        print(result, file=sys.stderr, flush=True)
        yield result


def fate_of(status: int | None) -> str:
    """Return what a status of the tests means for a change. Raises SystemExit if they did not run."""
    if status in (INTERNAL_ERROR, NO_TESTS):
        raise SystemExit(f"pytest ended with {status}")
    return {None: "timed out", PASSED: "survived"}.get(status, "killed")


def _table(results: Sequence[Result]) -> str:
    lines = ["| area | mutants | killed | timed out | survived | score |", "|---|---|---|---|---|---|"]
    for area in dict.fromkeys(result.area for result in results):
        fates = Counter(result.fate for result in results if result.area == area)
        count = fates.total()
        score = 1 - fates["survived"] / count
        numbers = (count, fates["killed"], fates["timed out"], fates["survived"])
        lines.append(f"| {area} | {' | '.join(map(str, numbers))} | {score:.0%} |")
    return "\n".join([*lines, "", *(str(result) for result in results if result.fate == "survived")])


def main() -> None:
    """Print a table by area, and every change that no test noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--area", action="append", choices=AREAS, help="one, or several; all if not given")
    parser.add_argument("--sample", type=int, default=12, help="changes an area; 0: all of them")
    parser.add_argument("--seed", type=int, default=0, help="which changes are chosen")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="peelsum-mutants-") as folder:
        by_area = [results_of(name, given.sample, given.seed, Path(folder)) for name in given.area or AREAS]
        print(_table([result for results in by_area for result in results]))


if __name__ == "__main__":
    main()

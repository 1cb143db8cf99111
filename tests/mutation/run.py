"""Change the program in small ways, one at a time, and list the changes that no test beside it notices.

    python tests/mutation/run.py [--area wire] [--sample 12] [--seed 0]

The changes are made in copies of the package folders, put first on PYTHONPATH; the checkout stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = ("common", "switch", "host", "control_plane", "topology", "cli")
#: What pytest ends with if no test ran. A change that keeps conftest.py from loading is noticed.
INTERNAL_ERROR, NO_TESTS = 3, 5
#: Sources as a pattern in the checkout, and the tests that should notice a change.
AREAS = {
    "wire": ("switch/peelsum/wire/*.py", "wire"),
    "spec": ("switch/peelsum/spec/*.py", "behaviour attack"),
    "transport": ("host/peelsum/transport/*.py", "transport"),
    "control": ("control_plane/peelsum/control/*.py", "control"),
    "p4runtime": ("switch/peelsum/**/p4runtime/*.py", "softswitch/p4runtime"),
    "compress": ("host/peelsum/compress/**/*.py", "compress"),
    "allreduce": ("host/peelsum/allreduce/*.py", "allreduce"),
    "codec": ("host/peelsum/codec/*.py", "codec"),
    "devices": ("host/peelsum/codec/[cr]*/*.py", "codec"),  # the host's: that of the GPU needs one
    "torch": ("host/peelsum/torch/*.py", "torch"),
    "simulation": ("topology/peelsum/simulation/*.py", "simulation"),
    "softswitch": ("switch/peelsum/softswitch/[cr]*/*.py", "softswitch"),  # compiler and runtime
    "cli": ("cli/peelsum/cli/**/*.py", "cli"),
    "topology": ("topology/peelsum/topology/description.py", "topology/test_description.py"),
}
_PAIRS = [
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot),
    (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.LShift, ast.RShift), (ast.BitAnd, ast.BitOr),
    (ast.And, ast.Or),
]  # fmt: skip
_INSTEAD: dict[type, type] = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_WITH_EFFECT = (ast.Expr, ast.AugAssign, ast.Delete, ast.Raise, ast.Continue, ast.Break)


def changes(tree: ast.AST) -> Iterator[tuple[Any, str, Any]]:
    """Yield every small change of the code: a node, a field of it, and the field's new value."""
    for node in _code(tree):
        match node:
            case ast.Constant(value=bool(value)):
                yield node, "value", not value
            case ast.Constant(value=int(value) | float(value)):
                yield node, "value", value + 1
                yield node, "value", value - 1
            case ast.Compare(ops=[op]) if type(op) in _INSTEAD:
                yield node, "ops", [_INSTEAD[type(op)]()]
            case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in _INSTEAD:
                yield node, "op", _INSTEAD[type(op)]()
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield node, "test", ast.UnaryOp(ast.Not(), test)
            case ast.Call(args=[first, second, *rest]) if not isinstance(second, ast.Starred):
                yield node, "args", [second, first, *rest]
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            for place, statement in enumerate(statements if isinstance(statements, list) else []):
                if isinstance(statement, _WITH_EFFECT) and not isinstance(
                    getattr(statement, "value", None), ast.Constant
                ):
                    yield node, field, [*statements[:place], ast.Pass(), *statements[place + 1 :]]


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes that are executed: no annotations, decorators or f-strings."""
    for name, value in ast.iter_fields(tree):
        if name not in ("annotation", "returns", "decorator_list", "type_params"):
            for node in value if isinstance(value, list) else [value]:
                if isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr):
                    yield node
                    yield from _code(node)


def changed(source: str, number: int) -> tuple[str, str]:
    """Return where the change of this number is and what it is, and the source with it."""
    tree = ast.parse(source)
    node, field, value = next(islice(changes(tree), number, None))
    line, before = getattr(node, "lineno", 0), ast.unparse(node).partition("\n")[0]
    setattr(node, field, value)
    after = ast.unparse(ast.fix_missing_locations(tree))
    return f"{line}: {field} of {before}", after


def run_tests(names: str, folder: Path, limit_s: float) -> int | None:
    """Run the tests with the copies in `folder`; return pytest's status, or None after `limit_s` seconds."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [*(str(folder / name) for name in FOLDERS), str(ROOT / "tests/support")]
        ),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONHASHSEED": "0",
    }
    options = [
        "-q",
        "-x",
        "-m",
        "not slow",
        "-k",
        "not bmv2",
        "--hypothesis-seed=0",
        "-p",
        "no:cacheprovider",
    ]
    tests = [str(ROOT / "tests" / name) for name in names.split()]
    command = [sys.executable, "-m", "pytest", *options, "-c", str(ROOT / "pyproject.toml"), *tests]
    running = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=sys.stderr, stderr=sys.stderr, start_new_session=True
    )
    try:
        status = running.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    if status in (INTERNAL_ERROR, NO_TESTS):
        raise SystemExit(f"pytest ended with {status}")
    return status


def try_area(area: str, sample: int, seed: int) -> list[str]:
    """Try a sample of an area's changes; return those that no test noticed, and a line with the score."""
    pattern, tests = AREAS[area]
    paths = sorted(ROOT.glob(pattern))
    candidates = [(path, n) for path in paths for n, _ in enumerate(changes(ast.parse(path.read_text())))]
    tried = random.Random(f"{seed} {area}").sample(
        candidates, min(sample or len(candidates), len(candidates))
    )
    survived = []
    with tempfile.TemporaryDirectory(prefix="peelsum-mutants-") as folder:
        for name in FOLDERS:  # with what is compiled, and with the times by which that is known
            shutil.copytree(ROOT / name, Path(folder) / name)
        started = time.monotonic()
        if run_tests(tests, Path(folder), 3600.0):
            raise SystemExit(f"tests of {area} fail without any change; mend that first")
        limit_s = 60.0 + 5 * (time.monotonic() - started)
        for path, number in tried:
            what, text = changed(path.read_text(), number)
            copy = Path(folder) / path.relative_to(ROOT)
            copy.write_text(text)
            if run_tests(tests, Path(folder), limit_s) == 0:
                survived.append(f"survived: {path.relative_to(ROOT)}:{what}")
            shutil.copy2(path, copy)
    score = 1 - len(survived) / len(tried)
    return [*survived, f"{area}: {len(tried)} of {len(candidates)} changes tried, {score:.0%} noticed"]


def main() -> None:
    """Print, for each area, the changes that no test noticed, and the share of the others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--area", action="append", choices=AREAS, help="one, or several; all if not given")
    parser.add_argument("--sample", type=int, default=12, help="changes an area; 0: all of them")
    parser.add_argument("--seed", type=int, default=0, help="which changes are chosen")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for area in given.area or AREAS:
        print(*try_area(area, given.sample, given.seed), sep="\n", flush=True)


if __name__ == "__main__":
    main()

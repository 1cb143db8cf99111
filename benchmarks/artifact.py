"""`make artifact`: measure every claim of the README on this machine, and say whether it holds.

Prints a line for each claim: its words, the expected range, the measured value and the verdict. Status 1 says
that a claim fails. The README may hold no number that is not in a claim (tests/docs/test_claims.py).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from peelsum.processes.progress import reporting_progress, shown_on_stderr

ROOT = Path(__file__).parents[1]


class Claim(NamedTuple):
    """Words of the README, and the command and the range that check them."""

    name: str
    text: str
    """The words, as the README has them."""
    quantity: str
    """What is measured."""
    command: str
    """Words after `python -m`. If it has --json, its output is parsed."""
    measure: Callable[[Any], float]
    """Returns the quantity; gets the command's output."""
    least: float = -math.inf
    most: float = math.inf
    """The claim holds from `least` to `most`."""
    needs_root: bool = False
    condition: str = ""
    """Further words of the README, with numbers that say under which conditions the claim holds."""

    @property
    def expected(self) -> str:
        """The range as text."""
        if self.least == self.most:
            return f"{self.least:g}"
        if not math.isfinite(self.most):
            return f"{self.least:g} or more"
        return f"{self.least:g} to {self.most:g}" if math.isfinite(self.least) else f"{self.most:g} or less"


def _density(ways: str, mbit: str) -> str:
    """Return the command that simulates sums of which 5% is not zero, over links of these rates."""
    where = f"--network simulated --support uniform --density 0.05 --mbit {mbit} --elements 1048576"
    run = "--calm 1 --attempts 1 --again --out build/artifact --json"
    return f"benchmarks density --way {ways} {where} {run}"


def _network_speedup(way: str) -> Callable[[Any], float]:
    """Return a function of rows: a figure that depends on no machine."""
    return lambda rows: _only(rows, way=way, mbit=200.0)["network_speedup"]


def _over_compact(way: str, mbit: float) -> Callable[[Any], float]:
    """Return a function of rows: the time of a sum, the codec's processor time included, over ours."""
    return lambda rows: (
        _only(rows, way=way, mbit=mbit)["time_ms"] / _only(rows, way="compact", mbit=mbit)["time_ms"]
    )


def _over_gloo(gbps: float) -> Callable[[Any], float]:
    return lambda rows: _only(rows, path="switch", gbps=gbps)["speedup_over_gloo"]


def _only(rows: Iterable[Any], **where: object) -> Any:
    """Return the first row with these values."""
    return next(row for row in rows if all(row.get(name) == value for name, value in where.items()))


def _wrong(simulation: Any) -> int:
    return sum(job["wrong"] for job in simulation["jobs"])


DEMO = "peelsum.cli demo --json"
LOSSY_DEMO = "peelsum.cli demo --steps 5 --loss 0.02 --json"
SPARSE, RING = _density("compact,sketch,lhc", "200"), _density("compact,ring", "1000,100000")
LHC = _density("compact,lhc_fastest", "1000")
DENSE_TIME, GLOO_TIME = "network time, dense / this", "iteration, gloo / peelsum"
SUM_TIME = "time of a sum, this / peelsum"
TRAIN = "peelsum.cli bench train --steps 5 --warm-ups 2 --json"
CLAIMS = (
    Claim(
        "exact", "equals gloo's sum of the same integers, bit for bit", "1 if all sums are equal", DEMO,
        lambda demo: demo["exact"] and demo["tensors_checked"] > 0, 1, 1,
    ),
    Claim(
        "bytes", "11 times fewer bytes", "bytes, dense / sketch", DEMO,
        lambda demo: demo["bytes_ratio"], 10, 13,
    ),
    Claim(
        "cells", "1.3 cells for each candidate", "cells / candidates", DEMO,
        lambda demo: demo["cells"] / demo["candidates"], 1.29, 1.35,
    ),
    Claim(
        "lost", "With 2% of the packets lost", "1 if all sums are equal", LOSSY_DEMO,
        lambda demo: demo["exact"], 1, 1,
    ),
    Claim(
        "racks", "change no bit of the sum", "wrong words, 64 workers, 1% lost",
        "peelsum.cli simulate --workers 64 --loss 0.01 --elements 65536 --json", _wrong, 0, 0,
    ),
    Claim(
        "ring", "15 times as long in NCCL's ring", SUM_TIME, RING, _over_compact("ring", 1000.0), 6,
        condition="At 1 Gbit/s, a sum of which 5% of the elements are not zero",
    ),
    Claim("lhc_time", "2.0 times as long by LHC", SUM_TIME, LHC, _over_compact("lhc_fastest", 1000.0), 1.1),
    Claim(
        "fast_ring", "at 100 Gbit/s the ring is faster", SUM_TIME, RING,
        _over_compact("ring", 100_000.0), most=0.9,
    ),
    Claim(
        "compact", "11.8 times faster than a dense sum", DENSE_TIME, SPARSE,
        _network_speedup("compact"), 11.2, 12.4,
    ),
    Claim(
        "sketch", "10.3 times as a sketch", DENSE_TIME, SPARSE, _network_speedup("sketch"), 9.8, 10.8
    ),
    Claim(
        "lhc", "3.9 times as LHC's program sends it", DENSE_TIME, SPARSE, _network_speedup("lhc"), 3.7, 4.1
    ),
    Claim(
        "slow_links", "8.7 times as fast as with gloo at 0.1 Gbit/s", GLOO_TIME,
        f"{TRAIN} --model lstm --gbps 0.1,1", _over_gloo(0.1), 4, needs_root=True,
    ),
    Claim(
        "fast_links", "3.2 times at 1 Gbit/s", GLOO_TIME,
        f"{TRAIN} --model lstm --gbps 0.1,1", _over_gloo(1.0), 1.3, needs_root=True,
    ),
    Claim(
        "dense_models", "gloo is faster for VGG19 at 10 Gbit/s", GLOO_TIME,
        f"{TRAIN} --model vgg19 --gbps 10", _over_gloo(10.0), most=1.1, needs_root=True,
    ),
    Claim(
        "program", "the same packets and counters", "1 if all tests pass",
        "pytest -q tests/behaviour/test_slot.py",
        lambda text: "passed" in text and "failed" not in text, 1, 1,
    ),
)  # fmt: skip


def main(arguments: Sequence[str], run: Callable[[str], Any] | None = None) -> int:
    """Check the claims, print a line for each, and return the exit status. `run`: instead of processes."""
    parser = argparse.ArgumentParser("python -m benchmarks.artifact", description=__doc__)
    names = [claim.name for claim in CLAIMS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="names of claims")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    options = parser.parse_args(arguments)
    line = "{text:52} {quantity:33} {expected:12} {shown:>8}  {verdict}"
    if not options.json:
        heads = {name: name for name in ("quantity", "expected", "verdict")}
        print(line.format(text="claim", shown="measured", **heads), flush=True)
    started, rows, outputs = time.monotonic(), list[dict[str, Any]](), dict[str, Any]()
    for claim in (claim for claim in CLAIMS if claim.name in options.only):
        measured, verdict = check(claim, run or run_command, outputs)
        words = {name: getattr(claim, name) for name in ("text", "quantity", "expected")}
        command = f"python -m {claim.command}"
        rows.append(
            {"claim": claim.name, **words, "command": command, "measured": measured, "verdict": verdict}
        )
        if not options.json:
            print(line.format(shown="-" if measured is None else f"{measured:.4g}", **rows[-1]), flush=True)
    failures = sum(row["verdict"].startswith("FAILS") for row in rows)
    minutes = (time.monotonic() - started) / 60
    totals = f"claims: {len(rows)}, failed: {failures}, minutes: {minutes:.0f}"
    print(json.dumps(rows, indent=2) if options.json else totals)
    return int(failures > 0)


def check(claim: Claim, run: Callable[[str], Any], outputs: dict[str, Any]) -> tuple[float | None, str]:
    """Return the measured value, None if there is none, and the verdict.

    outputs: what commands have returned or raised, as several claims share one.
    """
    if claim.needs_root and os.geteuid():
        return None, "not run: needs root, for gloo's links"
    if claim.command not in outputs:
        with reporting_progress(f"claim {claim.name}", shown_on_stderr()):
            try:
                outputs[claim.command] = run(claim.command)
            except CommandError as error:
                outputs[claim.command] = error
    if isinstance(outputs[claim.command], CommandError):
        return None, f"FAILS: {outputs[claim.command]}"
    measured = float(claim.measure(outputs[claim.command]))
    return measured, "holds" if claim.least <= measured <= claim.most else "FAILS"


class CommandError(Exception):
    """A command ended with an error. The message is its status and its last line."""


def run_command(command: str) -> Any:
    """Run a command in the checkout; return its output, parsed if it is JSON. Raises CommandError."""
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise CommandError(f"status {done.returncode}: {last}")
    return json.loads(done.stdout) if "--json" in words else done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run torch's own tests of a backend, `DistributedTest`, with ours, over a switch and `peelsum job serve`.

    python tests/torch/torchs_own_tests.py [--backend gloo] [--ranks 8] [NAME ...]

Prints what passed, what was skipped by reason, and what failed. A name chooses tests by a part of theirs.
"""

import argparse
import os
import sys
import tempfile
import time
import unittest
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed import distributed_c10d

from peelsum.allreduce.history_loops import warm_up
from peelsum.torch.process_group import BACKEND
from peelsum.transport import warming

sys.path.append(str(Path(__file__).parents[1] / "support"))
from patience import PATIENCE_S
from served_job import served_to

LANES = 32
#: Spare ports of the switch, for further groups.
SPARE = 42


class AsGloo(str):
    """A backend's name that torch's tests take for gloo's, so that they leave out none of gloo's."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


def tests_of(backend: str, ranks: int) -> Any:
    """Return torch's class of tests, for a backend. Its processes are forked from this one."""
    environment = {**os.environ, "BACKEND": AsGloo(backend), "WORLD_SIZE": str(ranks)}
    with patch.object(os, "environ", environment):
        from torch.testing._internal.common_distributed import DistTestCases

        DistTestCases.backend_feature["plugin"].add(backend)  # it is available
        from torch.testing._internal.distributed import distributed_test as torchs

    # Its own limit, 10 s, is short for a busy machine on which other ranks make a group.
    torchs.Barrier.sync = partial(torchs.Barrier.sync, timeout=PATIENCE_S)
    # By this, `monitored_barrier` refuses groups of other backends than gloo.
    get_backend = distributed_c10d.get_backend
    distributed_c10d.get_backend = lambda group=None: AsGloo(get_backend(group))

    class DistributedTest(torchs.TestDistBackend, torchs.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            if "cuda" in self._testMethodName and not torch.cuda.is_available():
                self.skipTest("CUDA is not available.")
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return DistributedTest


class Told(unittest.TextTestResult):
    """A result that prints each test's time."""

    passed = 0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        self.since = time.monotonic()
        super().startTest(test)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        self.passed += 1
        super().addSuccess(test)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        self.stream.writeln(f"    {time.monotonic() - self.since:.1f} s")
        super().stopTest(test)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=BACKEND)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    made = tests_of(asked.backend, asked.ranks)
    warm_up()  # once, for all processes that are forked
    warming.warm_up(LANES)
    names = unittest.defaultTestLoader.getTestCaseNames(made)
    names = [name for name in names if not asked.names or any(one in name for one in asked.names)]
    suite = unittest.TestSuite(map(made, names))
    with (
        tempfile.TemporaryDirectory() as folder,
        served_to(asked.ranks, Path(folder), spare=SPARE, timeout_s=100.0) as (_, _, environment),
    ):
        (Path(folder) / "barrier").touch()
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.update(BACKEND=asked.backend, WORLD_SIZE=str(asked.ranks), TEMP_DIR=folder, **environment)
        result: Any = unittest.TextTestRunner(verbosity=2, resultclass=Told).run(suite)
    failed = result.failures + result.errors
    print(f"passed: {result.passed}")
    for reason, count in Counter(reason for _, reason in result.skipped).most_common():
        print(f"skipped: {count}: {reason}")
    for test, _ in failed:
        print(f"failed: {test.id().rpartition('.')[2]}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Run the ranks of a benchmark, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def results_of(ranks: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what work(rank, path, *arguments) returns on each rank; `path` is for a FileStore of them.

    Raises what a rank raises.
    """
    with (
        TemporaryDirectory(prefix="peelsum-") as folder,
        ProcessPoolExecutor(ranks, mp_context=get_context("spawn")) as pool,
    ):
        path = str(Path(folder) / "store")
        # No process is idle yet, so that each call starts one.
        calls = [pool.submit(work, rank, path, *arguments) for rank in range(ranks)]
        return [one.result() for one in calls]

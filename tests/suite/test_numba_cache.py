"""Test processes that compile a function for different types keep each other's cache entries."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

from numba.core.caching import IndexDataCacheFile
from numba_cache import save_alone
from patience import PATIENCE_S

PROCESSES, ENTRIES = 4, 25


def file_in(folder: Path) -> IndexDataCacheFile:
    return IndexDataCacheFile(str(folder), "function", "stamp")


def write(folder: Path, process: int, together: Barrier) -> None:
    for entry in range(ENTRIES):
        together.wait(PATIENCE_S)
        save_alone(file_in(folder), (process, entry), f"code {process} {entry}")


def test_every_signature_keeps_its_own_code(tmp_path: Path) -> None:
    made = multiprocessing.get_context("fork")
    together = made.Barrier(PROCESSES)
    writers = [made.Process(target=write, args=(tmp_path, n, together)) for n in range(PROCESSES)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(PATIENCE_S)
    for process in range(PROCESSES):
        for entry in range(ENTRIES):
            assert file_in(tmp_path).load((process, entry)) == f"code {process} {entry}"

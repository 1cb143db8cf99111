"""After a failed sum over gloo, the error names the workers that do not report to the store."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch.distributed import HashStore
from torch_alone import group_of_one

from peelsum.allreduce import Part, SummationStalledError
from peelsum.torch import process_group_summation as summed


class FrozenStore:
    """A store whose process is stopped: writes are buffered, and reads never return."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def set(self, key: str, value: str) -> None:
        pass

    def get(self, key: str) -> bytes:
        self.end.wait()
        raise RuntimeError("closed")


class LateStore:
    """A store at which worker `n` reports after n intervals."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s, self._began = interval_s, time.monotonic()

    def set(self, key: str, value: str) -> None:
        pass

    def get(self, key: str) -> bytes:
        return b""

    def check(self, keys: list[str]) -> bool:
        worker = int(keys[0].rpartition("/")[2])
        return time.monotonic() - self._began >= worker * self._interval_s


def test_a_frozen_store_is_given_up(monkeypatch):
    monkeypatch.setattr(summed, "_STORE_S", 0.2)
    store: Any = FrozenStore()
    try:
        assert not summed._RollCall(store, 1, 3, 60.0).answered()
    finally:
        store.end.set()


def test_each_report_restarts_the_timeout():
    store: Any = LateStore(0.5)
    roll = summed._RollCall(store, 0, 5, 1.0)
    assert roll.answered()
    assert (roll.missing, roll.store_lost) == (set(), False)


def test_a_worker_that_does_not_report_is_missing():
    roll = summed._RollCall(HashStore(), 1, 3, 0.2)
    assert roll.answered()
    assert (roll.missing, roll.store_lost) == ({0, 2}, False)


def test_a_closed_group_names_nobody():
    with group_of_one():
        summation = summed.ProcessGroupSummation("gloo")
        summation.close()
    with pytest.raises(SummationStalledError, match="the group was closed") as raised:
        summation.sum_words([Part(np.ones(3, np.uint32), "add")])
    assert "did not answer" not in str(raised.value)

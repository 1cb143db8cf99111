"""Probes of a carrier that is not in use: its connection outlives them, and they keep no process alive."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from unittest.mock import patch

import pytest
from patience import PATIENCE_S

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch_alone import Sums, group_of_one, hooked, in_time, layers, let_go

from peelsum.flexible import Flexible
from peelsum.torch import SwitchAllreduceState

_SELECT_BY_GROUP = Flexible(methods=("ar_top_k_ring", "dense_switch"), ratios=(0.1,))
_NEVER_ENDS = """
import threading
from peelsum.torch.probes import Probes

class Stalled:
    def sum_words(self, parts):
        threading.Event().wait()

Probes().begin("switch", Stalled(), 1, beside=True)
raise SystemExit(3)
"""


class Group(Sums):
    """A process group of two ranks in which the other one sends nothing."""

    workers, few_words = 2, 0

    def sum_words(self, parts, *, by=None):
        return super().sum_words(parts)

    def broadcast(self, pieces, sources):
        return [piece.copy() for piece in pieces]


class Switch(Sums):
    """A switch that holds up each sum of a thread of its own, a probe, until `go`."""

    workers = 2

    def __init__(self):
        super().__init__()
        self.probed, self.go, self.over = threading.Event(), threading.Event(), threading.Event()
        self.closed_in_use = False

    def sum_words(self, parts):
        if "probe" in threading.current_thread().name:
            self.probed.set()
            assert self.go.wait(PATIENCE_S)
            self.closed_in_use = self.closed.is_set()
            self.over.set()
        return super().sum_words(parts)


def trained(switch, group):
    """Return a state after a backward pass over `group`, in which a probe of the switch has begun."""
    state = SwitchAllreduceState(over="switch", strategy=_SELECT_BY_GROUP)
    with (
        patch("peelsum.torch.bucket_sum.connect", lambda *_: switch),
        patch("peelsum.torch.bucket_sum.gathering_group", lambda *_: group),
    ):
        ddp = hooked(state, layers())
        in_time(lambda: ddp(torch.ones(2, 6)).sum().backward())
    assert switch.probed.wait(PATIENCE_S)
    return state


def let_go_soon(switch):
    threading.Timer(0.3, switch.go.set).start()


def test_a_state_is_closed_after_the_probe_under_way():
    switch = Switch()
    with group_of_one():
        state = trained(switch, Group())
        let_go_soon(switch)
        in_time(state.close)
    assert switch.closed.is_set()
    assert not switch.closed_in_use


def test_an_unreferenced_state_leaves_after_the_probe_under_way():
    switch = Switch()
    with group_of_one():
        reference = weakref.ref(trained(switch, Group()))
        assert let_go(reference)
        let_go_soon(switch)
        assert switch.closed.wait(PATIENCE_S)
        assert switch.over.wait(PATIENCE_S)
    assert not switch.closed_in_use


def test_a_sum_that_fails_closes_no_connection_in_use():
    switch = Switch()
    with group_of_one():
        with pytest.raises(TimeoutError, match="no answer"):
            trained(switch, Group(fails_at=0, error=TimeoutError("no answer")))
        let_go_soon(switch)
        assert switch.closed.wait(PATIENCE_S)
        assert switch.over.wait(PATIENCE_S)
    assert not switch.closed_in_use


def test_a_process_ends_while_a_probe_never_does():
    ended = subprocess.run([sys.executable, "-c", _NEVER_ENDS], check=False, timeout=PATIENCE_S)
    assert ended.returncode == 3

"""Errors that end the demo, and their messages: a wrong sum, a stopped worker, a missing worker."""

import os
import signal
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch.distributed
from patience import PATIENCE_S

from peelsum.allreduce import Allreduce, LocalSummation
from peelsum.cli.demo import command
from peelsum.cli.demo.worker import GlooCheck, GlooError, InexactSumError
from peelsum.processes import ProcessError
from peelsum.processes.user_errors import InterruptContext
from peelsum.topology import Star


@pytest.fixture
def gloo(tmp_path):
    """Return the check of a job whose only worker is this process."""
    yield GlooCheck(str(tmp_path / "store"), 0, 1)
    torch.distributed.destroy_process_group()


@pytest.fixture
def step():
    """Return one worker's result of a step: tensors of 6 and 4 elements."""
    (summation,) = LocalSummation.group(1)
    tensors = {"first": np.arange(1, 7, dtype=np.float32).reshape(2, 3), "second": np.ones(4, np.float32)}
    return Allreduce(summation, forms={"first": "sparse"}).sum(tensors)


def flipped(step, name, element, bit):
    """Return the step with one bit of one total changed."""
    total = step[name].total.copy().ravel()
    total[element] ^= np.int32(1) << bit
    wrong = replace(step[name], total_at=total)
    return replace(step, tensors=tuple(wrong if tensor.name == name else tensor for tensor in step.tensors))


def test_equal_sums_are_accepted(gloo, step):
    gloo.compare(step)


@pytest.mark.parametrize(("name", "element", "bit"), [("first", 0, 0), ("first", 5, 31), ("second", 3, 12)])
def test_one_wrong_bit_is_named(gloo, step, name, element, bit):
    right = int(step[name].total.ravel()[element])
    with pytest.raises(InexactSumError) as raised:
        gloo.compare(flipped(step, name, element, bit))
    wrong = int(np.int32(right) ^ np.int32(1) << bit)
    assert str(raised.value) == (
        f"tensor {name}, element {element}: the switch summed to {wrong}, gloo to {right}"
    )


def test_a_worker_that_gloo_does_not_find_is_one_line(tmp_path):
    with pytest.raises(GlooError, match=r"^gloo: .*; see which worker is stopped or has ended$"):
        GlooCheck(str(tmp_path / "store"), 0, 2, timeout_s=0.2)


@pytest.mark.system
def test_a_worker_stopped_while_starting_is_named(monkeypatch):
    def star_behind_a_stopped_worker(*arguments, **settings):
        os.kill(hands._workers[1]._process.pid, signal.SIGSTOP)
        assert hands._workers[0].has_message(PATIENCE_S)
        return Star(*arguments, **settings)

    monkeypatch.setattr(command, "Star", star_behind_a_stopped_worker)
    expected = r"^worker 1: no answer within 4 s; check whether it is stopped, or give this machine fewer"
    with ExitStack() as stack:
        hands = command.Processes(stack, InterruptContext(), 4.0)
        with pytest.raises(ProcessError, match=expected):
            hands.start(command.DemoSettings(workers=2, steps=3))

"""Errors of training scripts: duplicate names, failed sums, states that are not closed, lost ranks."""

import re
import time
import weakref
from datetime import timedelta
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch_training as training
from torch_alone import PATIENCE_S, Sums, hooked, in_time, layers, let_go, summing_threads
from torch_ranks import run_at_switch, run_ranks

from peelsum.compress import QSGD, Sparsifier
from peelsum.torch import (
    HookConfigError,
    HookError,
    HookFailedError,
    SwitchAllreduceState,
    backends,
    buckets,
    fsdp_hook,
    hook,
)
from peelsum.torch.process_group_summation import _or_method

INPUT = torch.ones(2, 6)


pytestmark = pytest.mark.usefixtures("alone")


def backward(ddp):
    in_time(lambda: ddp(INPUT).sum().backward())


# names


def test_a_name_of_another_module_is_refused_at_once():
    state, modules = SwitchAllreduceState(over=Sums()), [layers(), layers()]
    state.name(modules[0].named_parameters())
    with pytest.raises(
        HookConfigError, match=r"names: '0.weight' names two parameters; prefix it with the names"
    ):
        state.name(modules[1].named_parameters())


def test_a_name_is_free_again_when_its_module_is_gone():
    state, old, new = SwitchAllreduceState(over=Sums()), layers(), layers()
    state.name(old.named_parameters())
    old.itself = [old]  # as modules can be: in a cycle
    del old
    state.name(new.named_parameters())
    backward(hooked(state, new))
    assert set(state.stats().tensors) == {name for name, _ in new.named_parameters()}


def test_parameters_are_renamed_and_numbered_without_using_a_name_twice():
    state, (first, second) = SwitchAllreduceState(over=Sums()), layers()[:2]
    first, second = first.weight, second.weight
    state.name([("a", first), ("b", second)])
    state.name([("c", first)])
    state.name([("a", second)])
    assert state._names.of([first, second]) == ("c", "a")
    state.name([("parameter 0", second)])
    gone = [torch.nn.Parameter(torch.zeros(1))]
    assert state._names.of(gone) == ("parameter 1",)
    gone.clear()
    assert state._names.of([torch.nn.Parameter(torch.zeros(1))]) == ("parameter 2",)


# failures


@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=["", "static"])
@pytest.mark.parametrize("calls", [0, 2, 3, 5, 7])
def test_a_failed_sum_is_raised_by_its_backward_and_every_later_one(calls, options):
    """Of two passes, with one bucket and with three, of two sums each; no future is left pending."""
    sums, futures = Sums(calls, TimeoutError("worker 1 is missing")), []
    ddp = torch.nn.parallel.DistributedDataParallel(layers(), bucket_cap_mb=1e-4, **options)
    state = SwitchAllreduceState(over=sums)

    def watched(state, bucket):
        futures.append(hook(state, bucket))
        return futures[-1]

    ddp.register_comm_hook(state, watched)
    with pytest.raises(TimeoutError, match="worker 1 is missing"):
        list(map(backward, [ddp] * 5))
    failed_at = len(futures)
    for _ in range(2):
        with pytest.raises(HookFailedError, match=r"worker 1 is missing.*; start training again") as raised:
            backward(ddp)
        assert raised.value.__cause__ is sums.error
    assert len(futures) > failed_at
    assert all(in_time(future.wait).isnan().all() for future in futures[failed_at:])
    assert all(torch.isnan(one.grad).all() for one in ddp.parameters())
    in_time(state.close)


def test_what_hangs_on_a_buckets_future_is_called_before_backward_ends():
    """However long it takes: after that, the bucket is the next pass's."""
    called = []

    def slow(done):
        time.sleep(0.05)
        called.append(done.value().clone())

    def followed(state, bucket):
        future = hook(state, bucket)
        future.then(slow)
        return future

    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 6))
    ddp.register_comm_hook(SwitchAllreduceState(over=Sums()), followed)
    backward(ddp)
    assert len(called) == 1


def test_an_error_outside_of_a_backward_pass_is_the_futures():
    state = SwitchAllreduceState(over=Sums(0, KeyboardInterrupt("enough")))
    future = state.submit(torch.ones(3), [torch.nn.Parameter(torch.zeros(3))])
    with pytest.raises(HookFailedError, match=r"sum: ended by KeyboardInterrupt \(enough\)"):
        in_time(future.wait)


class Steps(Sparsifier):
    """A sparsifier that notes the steps it is asked in, for each parameter."""

    name = "steps"
    seen: ClassVar[list[int]] = []

    def choose(self, tensor, state):
        self.seen.append(state.step)
        return np.arange(tensor.size)


def test_two_modules_of_one_backward_pass_are_one_step():
    state = SwitchAllreduceState(over=Sums(), compressor=Steps())
    both = [hooked(state, layers()) for _ in range(2)]
    for _ in range(3):
        in_time(lambda: sum(ddp(INPUT).sum() for ddp in both).backward())
    backward(both[0])
    assert state.stats().steps == state.state_dict()["steps"] == 4
    seen = Steps.seen
    assert seen == sorted(seen)
    assert {step: seen.count(step) for step in seen} == {0: 12, 1: 12, 2: 12, 3: 6}


@pytest.mark.parametrize("passes", [0, 1])
def test_a_closed_state_sums_no_more(passes):
    state = SwitchAllreduceState(over=Sums())
    ddp = hooked(state, layers())
    for _ in range(passes):
        backward(ddp)
    state.close()
    state.close()
    for _ in range(2):
        with pytest.raises(HookError, match=r"state: was closed; make a new one"):
            backward(ddp)
    with pytest.raises(HookError, match="was closed"):
        state.connect()


# states that nobody closes


def owned(sums, monkeypatch):
    """A state that made its backend."""
    monkeypatch.setattr(backends, "ProcessGroupSummation", lambda *_, **__: sums)
    return SwitchAllreduceState(over="gloo")


def ended(threads):
    for thread in threads:
        thread.join(PATIENCE_S)
    return not any(thread.is_alive() for thread in threads)


def test_a_state_that_is_dropped_leaves_its_job(monkeypatch):
    def train():
        state = owned(sums, monkeypatch)
        ddp = hooked(state, layers())
        backward(ddp)
        return weakref.ref(state)

    sums, before = Sums(), set(summing_threads())
    reference = train()
    threads = set(summing_threads()) - before
    assert let_go(reference)
    assert ended(threads)
    assert sums.closed.is_set()


def test_a_state_whose_sum_failed_leaves_its_job_at_once(monkeypatch):
    """It leaves even if something holds it, as the error's own traceback does."""
    sums, before = Sums(0, TimeoutError("worker 1 is missing")), set(summing_threads())
    state = owned(sums, monkeypatch)
    state.connect()
    threads = set(summing_threads()) - before
    with pytest.raises(TimeoutError):
        backward(hooked(state, layers()))
    assert ended(threads)
    assert sums.closed.is_set()


# a job of another size


class OfThree(Sums):
    """A backend of three workers."""

    workers = 3


def test_a_way_to_sum_of_another_size_is_left_alone():
    sums = OfThree()
    with pytest.raises(HookConfigError, match="the job has 3 workers, but 1 ranks train"):
        SwitchAllreduceState(over=sums).connect()
    assert not sums.closed.is_set()


# states that are not a SwitchAllreduceState


@pytest.mark.parametrize("state", [None, SwitchAllreduceState, "switch"], ids=str)
def test_what_is_registered_without_being_a_state(state):
    """The error is one line that shows the value given, and what to write."""
    ddp = torch.nn.parallel.DistributedDataParallel(layers())
    ddp.register_comm_hook(state, hook)
    for call in (lambda: backward(ddp), lambda: fsdp_hook(state)):
        with pytest.raises(HookConfigError) as raised:
            call()
        assert str(raised.value) == (
            f"state: {state!r} is not a SwitchAllreduceState; "
            "register SwitchAllreduceState(), with parentheses, beside the hook"
        )


@pytest.mark.parametrize("backend", ["ncclx", "mpi"])
def test_backends_that_torch_has_and_has_not(backend, monkeypatch):
    state = SwitchAllreduceState(over=backend)
    message = f"over: torch {torch.__version__} was built without 'mpi'; use 'switch' or 'gloo', or install"
    if backend != "mpi":
        message = (
            f"over: '{backend}' is not a backend; use 'switch', or one of torch.distributed such as 'gloo'"
        )
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: name == "gloo")
    with pytest.raises(HookConfigError, match=re.escape(message)):
        state.connect()


def test_a_group_is_closed_even_if_leaving_the_switch_fails(monkeypatch):
    class Stuck(Sums):
        def close(self):
            raise OSError("no way out")

    made = []

    class Group(Sums):
        def __init__(self, *_, **__):
            super().__init__()
            made.append(self)

    monkeypatch.setattr(buckets, "connect", lambda *_: Stuck())
    monkeypatch.setattr(buckets, "ProcessGroupSummation", Group)
    state = SwitchAllreduceState(over="switch", compressor=QSGD())
    state.connect()
    with pytest.raises(OSError, match="no way out"):
        state.close()
    assert [one.closed.is_set() for one in made] == [True]


@pytest.mark.parametrize(("given", "waits"), [(None, 27.0), (7.0, 4.0), (2.0, 1.0)])
def test_how_long_a_backend_waits(given, waits):
    """The rest of the time is for the roll call."""
    state = SwitchAllreduceState(over="gloo", timeout_s=given)
    state.connect()
    gloo = state._sums.queue.backend._group._get_backend(torch.device("cpu"))
    assert gloo.options._timeout == timedelta(seconds=waits)
    state.close()


def test_how_each_backend_has_or():
    """Everybody's words, as long as they are fewer than a byte for each bit, which a ring sends twice."""
    ways_to_or = [_or_method(backend, 2) for backend in ("gloo", "mpi", "nccl")]
    assert ways_to_or == ["bor", "bor", "gather"]
    assert [_or_method("nccl", workers) for workers in (16, 17)] == ["gather", "max"]


# a rank that ends in the middle of a step: every other rank raises an error that names it, in time

#: A timeout that gloo must not reach. Any machine notices a broken connection in half of it.
NEVER_S = 300.0
BY_GLOO = {"over": "gloo", "timeout_s": NEVER_S}
JOB_TIMEOUT_S = 6.0


@pytest.mark.parametrize("ranks", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_a_lost_rank_is_named_over_gloo(ranks):
    """Of five ranks, some wait for live ranks only; they, too, name the one that ended."""
    *others, last = run_ranks(ranks, training.dies, ranks - 1, BY_GLOO, patience_s=NEVER_S)
    assert last is None
    for error, message, seconds in others:
        assert error == "SummationStalledError"
        assert f"worker {ranks - 1} did not answer; see whether it is running" in message
        assert seconds < NEVER_S / 2


def test_a_lost_rank_is_named_over_gloo_with_the_store_that_rank_0_keeps():
    first, *others = run_ranks(3, training.dies_with_the_store, 3, BY_GLOO, patience_s=NEVER_S)
    assert first is None
    for error, message, seconds in others:
        assert error == "SummationStalledError"
        assert "the store is gone, and with it rank 0, which keeps it; see why rank 0 ended" in message
        assert "did not answer" not in message
        assert seconds < NEVER_S / 2


@pytest.mark.usefixtures("forked_children")
def test_a_lost_rank_is_named_over_a_switch():
    """A switch does not report the end of a rank, so the others wait for the job's timeout."""
    star = {"timeout_s": JOB_TIMEOUT_S}
    (*others, last), _ = run_at_switch(3, training.dies, 2, {"over": "switch"}, star=star)
    assert last is None
    for error, message, seconds in others:
        assert error == "StalledError"
        waited = re.search(r"for (\d+\.\d) s: still waiting for worker 2;", message)
        assert waited, message
        assert float(waited[1]) >= JOB_TIMEOUT_S
        assert seconds < NEVER_S

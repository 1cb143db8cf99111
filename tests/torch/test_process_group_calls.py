"""Thousands of calls of the `peelsum` backend, their timeouts, and the precision of its sums of floats."""

from __future__ import annotations

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from inspect import signature

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.distributed as dist
import torch_training as training
from torch.distributed import HashStore
from torch_ranks import run_ranks

from peelsum.allreduce import LocalSummation
from peelsum.topology import Star
from peelsum.torch import CallTimeoutError, HookConfigError, SwitchOptions, SwitchProcessGroup, process_group

pytestmark = pytest.mark.usefixtures("forked_children")

BACKEND = "cpu:peelsum"
MINUTES_S = 300.0
RANKS = 3
TINY = 2.0**-149  # the smallest float32 above zero
BIG = float(np.finfo(np.float32).max)


def at_a_switch(ranks, work, *arguments, **options):
    """What `work` returns on each rank, over a switch of their own."""
    with Star(ranks) as star:
        seats = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        return run_ranks(ranks, work, *arguments, environments=seats, backend=BACKEND, **options)


def test_call_after_call_for_gloo_and_for_the_switch():
    assert at_a_switch(4, training.stressed, 400, MINUTES_S, patience_s=MINUTES_S) == [400] * 4


@pytest.mark.slow
def test_five_minutes_of_calls():
    rounds = at_a_switch(4, training.stressed, 10**9, MINUTES_S, patience_s=2 * MINUTES_S)
    assert len(set(rounds)) == 1
    assert rounds[0] > 400
    print(f"{rounds[0]:,} rounds by four ranks in {MINUTES_S:g} s")


# timeouts


@pytest.mark.skipif(
    "timeout" not in signature(dist.barrier).parameters,
    reason="barriers of torch before 2.12 take no timeout",
)
def test_a_call_that_is_late_can_be_waited_for_again():
    for told in at_a_switch(2, training.in_their_time):
        assert told == [
            "barrier: not done within its timeout of 0.2 s; see that all ranks make the same calls, or "
            "give it a longer one",
            "allreduce: not done within its timeout of 0.1 s; see that all ranks make the same calls, or "
            "give it a longer one",
            [2.0],
        ]


class Unanswered(LocalSummation):
    """A seat whose sums wait for `go`."""

    def __init__(self, hub, worker_id):
        super().__init__(hub, worker_id)
        self.go, self.closed = threading.Event(), threading.Event()

    def sum_words(self, parts):
        assert self.go.wait(MINUTES_S)
        return super().sum_words(parts)

    def close(self):
        self.closed.set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.mark.parametrize(("given", "stall_s"), [(timedelta(seconds=8), 7.2), (timedelta(minutes=30), None)])
def test_nine_tenths_of_the_groups_timeout_are_the_switchs_unless_torchs(monkeypatch, given, stall_s):
    seen, (seat,) = [], Unanswered.group(1)
    monkeypatch.setattr(process_group, "connect_rank", lambda *arguments: seen.append(arguments[-1]) or seat)
    group = SwitchProcessGroup(HashStore(), 0, 1, given)
    assert seen == [stall_s]
    group.shutdown()
    assert seat.closed.is_set()


def test_calls_end_by_the_groups_timeout_as_it_is_now(monkeypatch):
    (seat,) = Unanswered.group(1)
    monkeypatch.setattr(process_group, "connect_rank", lambda *_: seat)
    group = SwitchProcessGroup(HashStore(), 0, 1, timedelta(seconds=MINUTES_S))
    patient = group.barrier()
    group.set_timeout(timedelta(seconds=0.05))
    for work in (group.barrier(), group.allreduce(torch.ones(2)), group.broadcast([torch.ones(2)], root(0))):
        with pytest.raises(CallTimeoutError, match=r"not done within its timeout of 0.05 s"):
            work.wait()
        with pytest.raises(CallTimeoutError, match=r"not done within its timeout of 0.05 s"):
            work.wait(timedelta(seconds=MINUTES_S))
        assert not work.is_completed()
    with pytest.raises(CallTimeoutError, match=r"barrier: not done within its timeout of 0.01 s"):
        patient.wait(timedelta(seconds=0.01))
    seat.go.set()
    assert patient.wait()
    group.shutdown()
    assert work.wait()


def root(rank):
    options = dist.BroadcastOptions()
    options.rootRank = rank
    return options


# sums of floats


@pytest.fixture
def summed(monkeypatch):
    """What each rank, a thread here, has of an all_reduce of its own tensor."""
    seats = Unanswered.group(RANKS)
    for seat in seats:
        seat.go.set()
    monkeypatch.setattr(process_group, "connect_rank", lambda _, rank, *__: seats[rank])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def of(tensors, options=None, op=dist.ReduceOp.SUM):
        store = HashStore()

        def work(rank):
            group = SwitchProcessGroup(store, rank, RANKS, timedelta(seconds=MINUTES_S), options)
            opts = dist.AllreduceOptions()
            opts.reduceOp = op
            tensor = tensors[rank].clone()
            group.allreduce([tensor], opts).wait()
            group.barrier().wait()
            group.shutdown()
            return tensor

        with ThreadPoolExecutor(RANKS) as pool:
            return list(pool.map(work, range(RANKS)))

    return of


#: An element's floats on each rank, and their sum as IEEE 754 has it.
ELEMENTS = [
    (3.2e6, 3.2e6, 0.0),
    (0.731, 0.731, 1e-9),
    (1e-4, 1e-4, -3e-5),
    (BIG, -BIG, TINY),
    (TINY, TINY, TINY),
    (1e-40, -2e-40, TINY),
    (BIG, BIG, 0.0),
    (math.inf, 1.0, -BIG),
    (math.inf, -math.inf, 1.0),
    (math.nan, 1.0, math.inf),
    (1.0, 2.0, -math.inf),
    (-0.0, -0.0, -0.0),
    (-0.0, 0.0, -0.0),
    (1.0, -1.0, -0.0),
    (1.0, 2.0**-24, 2.0**-24),
    (2.0**24, 1.0, 1.0),
]


def expected(dtype):
    """Each element's sum by way of Python's floats, rounded to `dtype`."""
    given = [torch.tensor(one, dtype=dtype).double().tolist() for one in ELEMENTS]
    return torch.tensor([total(one) for one in given], dtype=torch.float64).to(dtype)


def total(numbers):
    """Return the sum: signs of zeros and non-finite values by IEEE's rules, all else exact, rounded once."""
    if all(map(math.isfinite, numbers)) and any(numbers):
        return math.fsum(numbers)
    return numbers[0] + numbers[1] + numbers[2]


def bits(tensor):
    """As integers, every NaN being the same."""
    kind = torch.int32 if tensor.dtype == torch.float32 else torch.int16
    return torch.where(tensor.isnan(), torch.full_like(tensor, math.nan), tensor).view(kind).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_element_of_a_small_tensor_has_its_own_precision(summed, dtype):
    ranks = [torch.tensor(one, dtype=dtype) for one in zip(*ELEMENTS, strict=True)]
    results = summed(ranks)
    for result in results:
        assert bits(result) == bits(expected(dtype))
    assert len({str(result.view(torch.uint8).tolist()) for result in results}) == 1


@pytest.mark.parametrize("size", [1024, 1025])
def test_what_is_small(summed, size):
    """One element more, and small values are rounded to what fixed point has beside large ones."""
    ranks = [torch.full((size,), value) for value in (1e-4, 3e-4, -2e-4)]
    for rank in ranks:
        rank[0] = 3.2e6
    by_unit = 2.0**-7  # three ranks' sums of 2**22 and less, in 31 bits
    small = math.fsum(float(rank[1]) for rank in ranks)
    for result in summed(ranks):
        assert result[0] == 9.6e6
        assert result[1] == (np.float32(small) if size == 1024 else round(small / by_unit) * by_unit)


def test_large_tensors_on_request_and_small_ones_without(summed):
    ranks = [torch.full((5000,), value) for value in (1e-4, 3e-4, -2e-4)]
    for rank in ranks:
        rank[0] = 3.2e6
    ranks[1][7] = math.nan
    small = np.float32(math.fsum(float(rank[1]) for rank in ranks))
    for result in summed(ranks, SwitchOptions(precise_up_to=math.inf)):
        assert result[1] == small
        assert result.isnan().nonzero().tolist() == [[7]]
    for result in summed([rank[:8] for rank in ranks], SwitchOptions(precise_up_to=0)):
        assert result.isnan().all()


def test_a_nan_is_the_same_one_whichever_it_was(summed):
    """Processors differ in which of two they keep, and in its sign."""
    quiet = torch.tensor([0x7FC00000, -0x400000, 0x7FC12345], dtype=torch.int32).view(torch.float32)
    for result in summed([quiet, torch.ones(3), torch.full((3,), -math.inf)]):
        assert result.view(torch.int32).tolist() == [0x7FC00000] * 3


def test_whole_numbers_of_64_bits(summed):
    rng = np.random.default_rng(4)
    ranks = [rng.integers(-(2**63), 2**63, 50, np.int64) for _ in range(RANKS)]
    for result in summed([torch.from_numpy(one) for one in ranks]):
        np.testing.assert_array_equal(result.numpy(), sum(ranks))


def test_sparse_layouts(summed):
    ranks = [torch.diag(torch.full((4,), float(rank))).to_sparse() for rank in range(RANKS)]
    for result in summed(ranks):
        assert torch.equal(result.to_dense(), torch.diag(torch.full((4,), 3.0)))


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_shapes(summed, shape):
    for result in summed([torch.full(shape, float(rank)) for rank in range(RANKS)]):
        assert torch.equal(result, torch.full(shape, 3.0))


@pytest.mark.parametrize(
    ("op", "values"),
    [
        (dist.ReduceOp.MAX, [2.0, 1e-4]),
        (dist.ReduceOp.MIN, [0.0, 1e-4]),
        (dist.ReduceOp.PRODUCT, [0.0, 1e-12]),
    ],
)
def test_other_operations(summed, op, values):
    for result in summed([torch.tensor([float(rank), 1e-4]) for rank in range(RANKS)], op=op):
        torch.testing.assert_close(result, torch.tensor(values))


def test_options_reach_the_group_through_torch(monkeypatch):
    monkeypatch.setattr(process_group, "connect_rank", lambda *_: seat)
    for options, expected in [(None, [3.2e6, np.float32(0.731)]), (SwitchOptions(0), [3.2e6, 187 / 256])]:
        (seat,) = Unanswered.group(1)
        seat.go.set()
        dist.init_process_group(BACKEND, store=HashStore(), rank=0, world_size=1, pg_options=options)
        total = torch.tensor([3.2e6, 0.731])
        dist.all_reduce(total)
        dist.destroy_process_group()
        assert total.tolist() == expected
    with pytest.raises(HookConfigError, match="pg_options: 5 is not for this backend; give SwitchOptions"):
        dist.init_process_group(BACKEND, store=HashStore(), rank=0, world_size=1, pg_options=5)


@pytest.mark.parametrize("number", [-1, math.nan, "x"])
def test_options_that_cannot_be_meant(number):
    with pytest.raises(HookConfigError, match=r"precise_up_to: .* counts no elements; give a number from 0"):
        SwitchOptions(precise_up_to=number)

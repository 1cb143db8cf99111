"""Sums of sparse tensors by a process group: bits, types, layouts, and what a table of many rows costs."""

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import sums_of_floats
import torch
import torch.distributed as dist

from peelsum.torch import HookConfigError, HookFailedError, SwitchOptions
from peelsum.torch import process_group as process_group_module

R = dist.ReduceOp
RANKS, FACTOR = 3, 0.25
FIXED = SwitchOptions(precise_up_to=0)
TYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64]


def coo(indices, values, shape, dtype=torch.float32):
    """An uncoalesced tensor."""
    indices = torch.tensor(indices, dtype=torch.int64)
    return torch.sparse_coo_tensor(indices, torch.as_tensor(values).to(dtype), shape, check_invariants=False)


def drawn(rank, shape, sparse, count, dtype=torch.float32, span=7):
    """Small numbers, so that sums are exact, at indices that often repeat and that ranks often share."""
    generator = torch.Generator().manual_seed(rank)
    spans = [min(n, span) for n in shape[:sparse]]
    indices = torch.stack([torch.randint(0, n, (count,), generator=generator) for n in spans])
    values = torch.randint(-9, 10, (count, *shape[sparse:]), generator=generator)
    return torch.sparse_coo_tensor(indices, values.to(dtype), shape, check_invariants=False)


@pytest.mark.parametrize("options", [None, FIXED], ids=["precise", "fixed"])
def test_sums_are_those_of_dense_tensors(all_reduced, options):
    shapes = [((50, 4), 1), ((10, 9, 8), 3), ((10, 9, 3, 2), 2), ((40,), 1), ((6, 0), 1)]
    kinds = [*((*one, torch.float32) for one in shapes), *((*shapes[0], dtype) for dtype in TYPES)]
    cases = [
        [drawn(rank, shape, sparse, 5 * rank, dtype) for rank in range(RANKS)]  # none of rank 0
        for shape, sparse, dtype in kinds
    ]
    results, sums = all_reduced(cases, options=options)
    for (shape, sparse, dtype), given, result in zip(kinds, cases, results, strict=True):
        dense = [one.to_dense().double() for one in given]
        assert torch.equal(result.to_dense().double(), sum(dense))
        rows = [{tuple(one) for one in each.coalesce().indices().t().tolist()} for each in given]
        assert [tuple(one) for one in result.indices().t().tolist()] == sorted(set().union(*rows))
        assert (result.dtype, result.sparse_dim(), result.shape) == (dtype, sparse, shape)
    assert sums >= len(cases)


@pytest.mark.parametrize("op", [R.AVG, dist._make_nccl_premul_sum(FACTOR)], ids=["average", "premul"])
@pytest.mark.parametrize("options", [None, FIXED], ids=["precise", "fixed"])
def test_averages_and_factors(all_reduced, op, options):
    dtypes = [torch.float32, torch.bfloat16, *([torch.int32] if op == R.AVG else [])]
    cases = [[drawn(rank, (50, 4), 1, 5 * rank, dtype) for rank in range(RANKS)] for dtype in dtypes]
    results, _ = all_reduced(cases, op, options)
    for dtype, given, result in zip(dtypes, cases, results, strict=True):
        total = sum(one.to_dense().double() for one in given)
        expected = total / RANKS if op == R.AVG else total * FACTOR
        expected = expected.float() if dtype.is_floating_point else expected.trunc()
        assert torch.equal(result.to_dense(), expected.to(dtype))


def test_bits_of_shared_rows_are_those_of_integers_and_of_others_the_ranks_own(reduced):
    rng = np.random.default_rng(5)
    rows = [np.sort(rng.choice(90, 40, replace=False)) for _ in range(RANKS)]
    values = [rng.normal(size=(40, 40)) * 10.0 ** rng.integers(-3, 3, (40, 40)) for _ in range(RANKS)]
    values = [one.astype(np.float32) for one in values]
    given = [coo([own.tolist()], one, (10**7, 40)) for own, one in zip(rows, values, strict=True)]
    result, _ = reduced(given)
    held, counts = np.unique(np.concatenate(rows), return_counts=True)
    tables = [np.zeros((90, 40), np.float32) for _ in range(RANKS)]
    for table, own, one in zip(tables, rows, values, strict=True):
        table[own] = one
    shared = held[counts > 1]
    expected = np.sum(tables, axis=0)
    expected[shared] = sums_of_floats.expected([one[shared] for one in tables], 32).values.reshape(-1, 40)
    assert result.indices()[0].tolist() == held.tolist()
    np.testing.assert_array_equal(result.values().numpy().view(np.uint32), expected[held].view(np.uint32))


def test_few_elements_are_as_precise_as_dense_ones(reduced):
    numbers = [[3.2e6, 0.731], [1.0, 2.0**-30], [math.pi, 1e-20]]
    result, _ = reduced([coo([[7, 2]], one, (9,)) for one in numbers])
    singles = [[Fraction(float(np.float32(one))) for one in each] for each in zip(*numbers, strict=True)]
    exact = [float(np.float32(float(sum(one)))) for one in singles]
    assert result.values().tolist() == exact[::-1]


def test_what_is_not_finite_stays_in_its_element_or_makes_all_nan(reduced):
    for row in (3, 1):  # of one rank, and of several
        given = [coo([[row, 8]], [[math.inf, 1.0], [2.0, 3.0]], (9, 2))]
        given += [coo([[1]], [[1.0, 1.0]], (9, 2))] * 2
        few, _ = reduced(given)
        assert few.values().isinf().sum() == 1
        assert few.values().isfinite().sum() == few.values().numel() - 1
        fixed, _ = reduced(given, options=FIXED)
        assert fixed.values().isnan().all()
        assert fixed.indices().tolist() == few.indices().tolist()


def test_nothing_anywhere(reduced):
    result, _ = reduced([coo([[]], torch.empty(0, 4), (10**7, 4))] * RANKS)
    assert result._nnz() == 0
    assert result.shape == (10**7, 4)


def test_booleans_and_scalars(reduced):
    result, _ = reduced([coo([[rank, 5]], [True, False], (9,), torch.bool) for rank in range(RANKS)])
    assert result.to_dense().tolist() == [True] * 3 + [False] * 6
    places, values = torch.empty(0, 1, dtype=torch.int64), torch.ones(1, 4)
    scalar = torch.sparse_coo_tensor(places, values, (4,), check_invariants=True)
    assert reduced([scalar] * RANKS)[0].to_dense().tolist() == [3.0] * 4


def test_torch_checks_calls_of_any_type(ranks, monkeypatch):
    """Torch's debug level DETAIL sends what gloo compares, by a reduction that gloo must have."""
    monkeypatch.setattr(process_group_module, "get_debug_level", lambda: dist.DebugLevel.DETAIL)

    def work(group):
        given = [coo([[group.rank(), 5]], [1, 0], (9,), dtype) for dtype in (*TYPES, torch.bool)]
        for one in given:
            group.allreduce([one]).wait()
        return [one.to_dense().tolist() for one in given]

    results, _ = ranks(work)
    assert results == [[[1] * 3 + [0] * 6] * (len(TYPES) + 1)] * RANKS


@pytest.mark.parametrize("op", [R.SUM, R.AVG], ids=str)
def test_float64_is_summed_by_gloo(reduced, op):
    given = [drawn(rank, (50, 4), 1, 6, torch.float64) for rank in range(RANKS)]
    result, sums = reduced(given, op)
    total = sum(one.to_dense() for one in given)
    torch.testing.assert_close(result.to_dense(), total / (RANKS if op == R.AVG else 1))
    assert sums == 0


def test_other_reductions_are_refused_by_gloo(ranks):
    def work(group):
        opts = dist.AllreduceOptions()
        opts.reduceOp = R.MAX
        with pytest.raises(RuntimeError, match="sparse tensors only works"):
            group.allreduce([drawn(group.rank(), (9,), 1, 3)], opts)

    ranks(work)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(
    "layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc], ids=str
)
def test_other_layouts_are_refused_with_a_remedy(ranks, layout):
    blocks = {"blocksize": (2, 2)} if "bs" in str(layout) else {}

    def work(group):
        tensor = torch.eye(4).to_sparse(layout=layout, **blocks)
        with pytest.raises(
            HookConfigError, match=f"allreduce: a tensor is {layout}; give tensor.to_sparse_coo"
        ):
            group.allreduce([tensor])
        return True

    assert ranks(work) == ([True] * RANKS, 0)


def test_ranks_whose_tensors_differ_are_told(ranks):
    def work(group):
        group.allreduce([drawn(0, (9 + group.rank(), 2), 1, 3)]).wait()

    said = r"gave other tensors than worker ., which has SUM of float32\[9, 2\] with 1 sparse"
    with pytest.raises(HookFailedError, match=said):
        ranks(work)


@pytest.mark.parametrize("length", [10**7, 2**40])
def test_a_long_table_costs_its_touched_rows(monkeypatch, ranks, length):
    """No worker could have a bit for each of 2**40 rows."""
    words = []

    class Counted(process_group_module.TensorSums):
        def reduce_rows(self, tensor, reduction):
            seat = self._summation.backend
            gather, add = seat.all_gather, seat.sum_words
            seat.all_gather = lambda given: words.append(given.size) or gather(given)
            seat.sum_words = lambda parts: words.extend(one.words.size for one in parts) or add(parts)
            return super().reduce_rows(tensor, reduction)

    monkeypatch.setattr(process_group_module, "TensorSums", Counted)

    def work(group):
        given = coo([[5, length - 1, length // 2 + group.rank()]], torch.ones(3, 16), (length, 16))
        group.allreduce([given]).wait()
        return given

    tracemalloc.start()
    results, _ = ranks(work)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for one in results:
        assert one._nnz() == 2 + RANKS
        assert one.values().sum(1).tolist() == [48.0, *[16.0] * RANKS, 48.0]
    of_each = 32 + RANKS * (2 * 16 + 1) + 16  # first packet, two shared rows gathered, its own row
    assert sum(words) <= RANKS * RANKS * of_each
    assert peak < 2**20

"""Every reduction of every type of number, by the switch or gloo, against Python's integers and fractions."""

import functools
import math
import operator
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.distributed as dist

from peelsum.torch import HookConfigError, SwitchOptions, calls

R = dist.ReduceOp
RANKS, FACTOR = 3, 0.25
TINY = 2.0**-149  # the smallest float32 above zero
BIG = float(np.finfo(np.float32).max)
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
OF_BITS = {R.BOR: operator.or_, R.BAND: operator.and_, R.BXOR: operator.xor}
OF_NUMBERS = {R.SUM: operator.add, R.PRODUCT: operator.mul, R.MIN: min, R.MAX: max}


def random_bits(dtype):
    """Nine numbers of any bits on each rank."""
    rng = np.random.default_rng(7)
    octets = [rng.integers(0, 256, 9 * dtype.itemsize, np.uint8) for _ in range(RANKS)]
    return [torch.from_numpy(one).view(dtype) for one in octets]


def wrapped(number, dtype):
    size, low = 1 << 8 * dtype.itemsize, torch.iinfo(dtype).min
    return (number - low) % size + low


@pytest.mark.covering(1)
@pytest.mark.parametrize("op", [*OF_NUMBERS, *OF_BITS], ids=str)
@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED, ids=str)
def test_integers_of_any_bits(reduced, dtype, op):
    given = random_bits(dtype)
    if dtype == torch.uint64 and op in (R.MIN, R.MAX):
        with pytest.raises(HookConfigError, match=r"allreduce: M\w\w of torch.uint64: is not for this"):
            reduced(given, op)
        return
    result, sums = reduced(given, op)
    numbers = zip(*(one.tolist() for one in given), strict=True)
    expected = [functools.reduce((OF_NUMBERS | OF_BITS)[op], one) for one in numbers]
    assert result.tolist() == [wrapped(one, dtype) for one in expected]
    assert (sums > 0) == (op in (R.SUM, R.BOR, R.BAND))


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED, ids=str)
def test_averages_of_integers_are_rounded_towards_zero(reduced, dtype):
    given = random_bits(dtype)
    result, sums = reduced(given, R.AVG)
    totals = [sum(one) for one in zip(*(one.tolist() for one in given), strict=True)]
    if dtype.itemsize == 8:
        totals = [wrapped(one, dtype) for one in totals]
    assert result.tolist() == [math.trunc(Fraction(one, RANKS)) for one in totals]
    assert sums > 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("op", [R.SUM, R.AVG, "premul", R.MIN, R.MAX, R.PRODUCT], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(reduced, dtype, op):
    """Numbers whose results are exact before they are rounded to the type."""
    numbers = [(1.0, 2.0, 6.0), (-0.5, 3.0, 0.25), (0.0, 8.0, -8.0), (1.5, 1.5, 1.5), (2.0, -2.0, 5.0)]
    given = [torch.tensor(one).to(dtype) for one in zip(*numbers, strict=True)]
    results = {R.SUM: sum, R.MIN: min, R.MAX: max, R.PRODUCT: math.prod}
    results |= {R.AVG: lambda one: sum(one) / RANKS, "premul": lambda one: sum(one) * FACTOR}
    exact = [results[op](one) for one in numbers]
    made = dist._make_nccl_premul_sum(FACTOR) if op == "premul" else op
    result, sums = reduced(given, made)
    assert result.tolist() == torch.tensor(exact, dtype=torch.float64).to(dtype).tolist()
    assert (sums > 0) == (dtype != torch.float64 and op in (R.SUM, R.AVG, "premul"))


def test_an_average_in_fixed_point_is_rounded_once(reduced):
    rng = np.random.default_rng(3)
    given = [torch.from_numpy(rng.integers(-(2**20), 2**20, 40).astype(np.float32)) for _ in range(RANKS)]
    result, _ = reduced(given, R.AVG, SwitchOptions(precise_up_to=0))
    totals = [sum(map(Fraction, one)) for one in zip(*(one.tolist() for one in given), strict=True)]
    assert result.tolist() == [float(np.float32(float(one / RANKS))) for one in totals]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (R.SUM, [True, True, False]),
        (R.BOR, [True, True, False]),
        (R.MAX, [True, True, False]),
        (R.MIN, [True, False, False]),
        (R.PRODUCT, [True, False, False]),
        (R.BAND, [True, False, False]),
        (R.BXOR, [True, True, False]),
    ],
    ids=str,
)
def test_booleans(reduced, op, expected):
    given = [torch.tensor(one) for one in ([True, True, False], [True, False, False], [True, False, False])]
    assert reduced(given, op)[0].tolist() == expected


def test_complex_numbers(reduced):
    given = [torch.tensor([1 + 2j, rank]) for rank in range(RANKS)]
    assert reduced(given, R.SUM)[0].tolist() == [3 + 6j, 3]
    assert reduced(given, R.AVG)[0].tolist() == [1 + 2j, 1]


@pytest.mark.parametrize(
    ("tensor", "op", "said"),
    [
        (torch.ones(2), R.BOR, r"BOR of torch.float32: takes integers and booleans; give tensor.view"),
        (torch.ones(2, dtype=torch.bool), R.AVG, r"AVG of torch.bool: takes numbers; give"),
        (torch.ones(2, dtype=torch.int32), "premul", r"PREMUL_SUM of torch.int32: takes floats; give"),
        (torch.ones(2, device="meta"), R.SUM, r"a tensor is on meta; move it to cpu or cuda"),
        (torch.ones(2, dtype=torch.cfloat), R.MAX, r"MAX of torch.complex64: is not for this type; "),
    ],
)
def test_reductions_that_cannot_be(ranks, tensor, op, said):
    """The error comes from the call, and the group goes on."""

    def work(group):
        opts = dist.AllreduceOptions()
        opts.reduceOp = dist._make_nccl_premul_sum(FACTOR) if op == "premul" else op
        with pytest.raises(HookConfigError, match="allreduce: " + said):
            group.allreduce([tensor], opts)
        if tensor.is_meta:
            with pytest.raises(HookConfigError, match="broadcast: a tensor is on meta; move it"):
                group.broadcast([tensor], dist.BroadcastOptions())
            with pytest.raises(HookConfigError, match="send: a tensor is on meta; move it"):
                group.send([tensor], 0, 0)

    assert ranks(work)[1] == 0


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint64, torch.float8_e5m2, torch.complex64], ids=str)
def test_what_gloo_has_no_type_for_is_sent_as_bytes(ranks, dtype):
    def work(group):
        mine = torch.arange(6).reshape(3, 2).to(dtype)
        everybody = [torch.zeros(3, 2).to(dtype) for _ in range(RANKS)]
        group.allgather([everybody], [mine]).wait()
        exchanged = torch.zeros(3, 2).to(dtype)
        group.alltoall_base(exchanged, mine, [1, 1, 1], [1, 1, 1], dist.AllToAllOptions()).wait()
        return [one.to(torch.complex64).real.tolist() for one in (*everybody, exchanged)]

    rows = [[0, 1], [2, 3], [4, 5]]
    for rank, told in enumerate(ranks(work)[0]):
        assert told == [rows] * RANKS + [[rows[rank]] * 3]


def test_averages_of_reduce_scatter_leave_the_input(ranks):
    def work(group):
        given, made = torch.arange(6.0) * group.rank(), torch.zeros(2)
        opts = dist.ReduceScatterOptions()
        opts.reduceOp = R.AVG
        work = group._reduce_scatter_base(made, given, opts)
        future = work.get_future()
        assert future.wait()[0] is made
        assert opts.reduceOp == R.AVG
        return made.tolist(), given.tolist()

    for rank, told in enumerate(ranks(work)[0]):
        assert told == ([2.0 * rank, 2.0 * rank + 1], [one * rank for one in range(6)])


def test_only_the_root_gets_what_is_reduced(ranks):
    def work(group):
        tensor, opts = torch.full((4,), group.rank() + 1), dist.ReduceOptions()
        opts.rootRank = 1
        group.reduce([tensor], opts).wait()
        return tensor.tolist()

    told, sums = ranks(work)
    assert told == [[1] * 4, [6] * 4, [3] * 4]
    assert sums == 1


def test_tensors_elsewhere_are_copied_and_copied_back(ranks, monkeypatch):
    """As for tensors on a GPU: here for all, since gloo seems to have no type."""
    monkeypatch.setattr(calls, "_GLOO_DTYPES", ())

    def work(group):
        everybody = [torch.zeros(2) for _ in range(RANKS)]
        group.allgather([everybody], [torch.full((2,), float(group.rank()))]).wait()
        right, left = (group.rank() + 1) % RANKS, (group.rank() - 1) % RANKS
        received = torch.zeros(2)
        sending = group.send([torch.full((2,), float(group.rank()))], right, 0)
        group.recv([received], left, 0).wait()
        sending.wait()
        return [one.tolist() for one in everybody], received.tolist()

    for rank, told in enumerate(ranks(work)[0]):
        assert told == ([[0.0] * 2, [1.0] * 2, [2.0] * 2], [float((rank - 1) % RANKS)] * 2)


def test_detailed_debugging_names_the_ranks_whose_calls_differ(ranks):
    def work(group):
        tensor, sent = torch.ones(3, dtype=torch.int16), torch.full((2,), group.rank(), dtype=torch.float64)
        group.allreduce([tensor]).wait()
        opts = dist.BroadcastOptions()
        opts.rootRank = 2
        group.broadcast([sent], opts).wait()
        everybody = [torch.zeros(2, dtype=torch.float64) for _ in range(RANKS)]
        group.allgather([everybody], [sent]).wait()
        with pytest.raises(RuntimeError, match="Detected mismatch between collectives on ranks"):
            group.allreduce([torch.ones(3 if group.rank() else 4)])
        return tensor.tolist(), [one.tolist() for one in everybody]

    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        told = ranks(work)[0]
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)
    assert told == [([3] * 3, [[2.0] * 2] * RANKS)] * RANKS


def test_a_number_that_torch_keeps_negated_is_summed(ranks):
    """The imaginary part of a conjugate is the negated memory of the number."""

    def work(group):
        number = torch.tensor([1 + 2j * (group.rank() + 1)]).conj().imag
        assert number.is_neg()
        group.allreduce([number]).wait()
        return number.tolist()

    results, _ = ranks(work)
    assert results == [[-12.0]] * RANKS


# the precision of sums of floats

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
def test_each_element_of_a_small_tensor_has_its_own_precision(reduced, dtype):
    result, _ = reduced([torch.tensor(one, dtype=dtype) for one in zip(*ELEMENTS, strict=True)])
    assert bits(result) == bits(expected(dtype))


def large_and_small(size):
    """Tensors of so many elements, of which the first is large, and the sum of each other element."""
    ranks = [torch.full((size,), value) for value in (1e-4, 3e-4, -2e-4)]
    for rank in ranks:
        rank[0] = 3.2e6
    return ranks, math.fsum(float(rank[1]) for rank in ranks)


@pytest.mark.parametrize("size", [1024, 1025])
def test_what_is_small(reduced, size):
    """One element more, and small values are rounded to what fixed point has beside large ones."""
    by_unit = 2.0**-7  # three ranks' sums of 2**22 and less, in 31 bits
    given, small = large_and_small(size)
    result, _ = reduced(given)
    assert result[0] == 9.6e6
    assert result[1] == (np.float32(small) if size == 1024 else round(small / by_unit) * by_unit)


def test_large_tensors_on_request_and_small_ones_without(reduced):
    given, small = large_and_small(5000)
    given[1][7] = math.nan
    result, _ = reduced(given, options=SwitchOptions(precise_up_to=math.inf))
    assert result[1] == np.float32(small)
    assert result.isnan().nonzero().tolist() == [[7]]
    assert reduced([one[:8] for one in given], options=SwitchOptions(precise_up_to=0))[0].isnan().all()


def test_a_nan_is_the_same_one_whichever_it_was(reduced):
    """Processors differ in which of two they keep, and in its sign."""
    quiet = torch.tensor([0x7FC00000, -0x400000, 0x7FC12345], dtype=torch.int32).view(torch.float32)
    result, _ = reduced([quiet, torch.ones(3), torch.full((3,), -math.inf)])
    assert result.view(torch.int32).tolist() == [0x7FC00000] * 3


@pytest.mark.parametrize("tensor", [torch.tensor(1.0), torch.ones(0), torch.arange(6.0).reshape(2, 3).t()])
def test_shapes_and_strides(reduced, tensor):
    result, _ = reduced([tensor] * RANKS)
    assert torch.equal(result, RANKS * tensor)

"""The sum in memory fulfils a backend's contract: padding, order, early checks, and named stalls."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest
from patience import PATIENCE_S

from peelsum.allreduce import Allreduce, InvalidRequestError, LocalSummation, Part, SummationStalledError


def words(*values):
    return np.array(values, np.uint32)


def test_parts_are_padded_and_combined_by_their_op():
    group = list(LocalSummation.group(2, lanes=2))
    parts = [
        [Part(words(2**32 - 1, 2, 3), "add"), Part(words(0b0101), "or"), Part(words(), "add")],
        [Part(words(2, 2**31, 2**31), "add"), Part(words(0b0011), "or"), Part(words(), "add")],
    ]
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(lambda one, its: one.sum_words(its), group, parts):
            assert [total.tolist() for total in result] == [[1, 2**31 + 2, 2**31 + 3], [0b0111], []]
    assert [one.worker_id for one in group] == [0, 1]


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"workers": 0}, "workers: 0 is not a positive integer; use 1 or more"),
        ({"lanes": 0}, "lanes: 0 is not a positive integer; use 1 or more"),
        ({"lanes": 2.0}, "lanes: 2.0 is not a positive integer; use 1 or more"),
        ({"timeout_s": float("nan")}, "timeout_s: nan is not a time; use 0 or more seconds"),
    ],
    ids=str,
)
def test_a_group_that_cannot_be_is_refused(group, message):
    with pytest.raises(InvalidRequestError, match=f"^{message}$"):
        LocalSummation.group(**{"workers": 1, **group})


def test_a_stall_names_chunk_and_missing_workers():
    group = LocalSummation.group(4, lanes=2, timeout_s=0.01)
    with pytest.raises(SummationStalledError, match=r"chunk 0 .* from workers 1, 2, 3 within 0.01 s"):
        group[0].sum_words([Part(words(1, 2, 3), "add")])
    with pytest.raises(SummationStalledError, match=r"chunk 0 .* from workers 1, 3 within"):
        group[2].sum_words([Part(words(1, 2, 3), "add")])


def test_a_check_ends_the_call_before_later_parts_are_waited_for():
    group = LocalSummation.group(2, lanes=2, timeout_s=PATIENCE_S)

    def refuse(total):
        raise ValueError(f"saw {total.tolist()}")

    def attempt(one, its):
        with pytest.raises(ValueError, match=r"saw \[3\]"):
            one.sum_words(its)

    with ThreadPoolExecutor(2) as pool:
        alone = [Part(words(1), "or", refuse)]
        longer = [Part(words(2), "or", refuse), Part(words(*range(100)), "add")]
        list(pool.map(attempt, group, [alone, longer]))


def test_times_come_from_the_clock_that_was_given():
    ticks = count()
    reduce = Allreduce(LocalSummation.group(1)[0], forms="dense", clock=lambda: float(next(ticks)))
    result = reduce.sum({"g": np.ones(3, np.float32)})
    # Network: agreement, header and values. The words of the last two are written before, and read after it.
    assert (result.encode_s, result.network_s, result.decode_s) == (2.0, 3.0, 2.0)


@pytest.mark.parametrize("members", [(), (0, 2, 5)], ids=["from the start", "after losses"])
def test_a_result_names_its_members_and_averages_divide_by_their_number(members):
    group = LocalSummation.group(3, timeout_s=PATIENCE_S)
    for backend in group if members else ():
        setattr(backend, "members", members)  # noqa: B010 - only a backend that loses ranks has it

    def average(backend):
        gradient = np.array([backend.worker_id, 12.0], np.float32)
        return Allreduce(backend, average=True).sum({"g": gradient})

    with ThreadPoolExecutor(3) as pool:
        for result in pool.map(average, group):
            assert result.members == (members or (0, 1, 2))
            assert result["g"].divisor == len(result.members)
            assert result["g"].values.tolist() == [1.0, 12.0]

"""Packed row numbers, and the union of rows that workers have, in threads of this process."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peelsum.allreduce import LocalSummation, PlanMismatchError
from peelsum.allreduce.rows import pack_rows, packed_words, unite_rows, unpack_rows

LENGTHS = st.one_of(st.integers(1, 100), st.integers(1, 2**62))
TABLES = LENGTHS.flatmap(
    lambda length: st.tuples(st.sets(st.integers(0, length - 1), max_size=70).map(sorted), st.just(length))
)


@given(TABLES)
def test_rows_come_back_from_their_words(table):
    rows, length = np.array(table[0], np.int64), table[1]
    words = pack_rows(rows, length)
    assert words.size == packed_words(rows.size, length)
    assert 32 * words.size < rows.size * (np.log2(length / max(rows.size, 1)) + 4) + 32
    np.testing.assert_array_equal(unpack_rows(words, rows.size, length), rows)


def test_other_words_are_refused():
    with pytest.raises(ValueError, match="rows: 4 in words for 5"):
        unpack_rows(pack_rows(np.array([1, 2, 3, 50]), 64) & ~np.uint32(0), 5, 64)


def united(of_workers, what=lambda worker: "tables"):
    """Return the unions of several tables' rows on each worker, or its error's message."""
    summations = LocalSummation.group(len(of_workers))

    def unions(summation):
        tables = [(np.array(rows, np.int64), length) for rows, length in of_workers[summation.worker_id]]
        try:
            return unite_rows(summation, tables, what(summation.worker_id))
        except PlanMismatchError as error:
            return str(error)

    with ThreadPoolExecutor(len(summations)) as pool:
        return list(pool.map(unions, summations))


@pytest.mark.parametrize("most", [0, 3, 2000])
def test_all_workers_know_who_has_which_row(most):
    rng = np.random.default_rng(most)
    lengths = [10**7, 5, 2**40]
    given = [
        [
            (sorted(set(rng.integers(0, length, rng.integers(0, most + 1)).tolist())), length)
            for length in lengths
        ]
        for _ in range(3)
    ]
    for unions in united(given):
        for number, union in enumerate(unions):
            by_worker = [tables[number][0] for tables in given]
            assert union.rows.tolist() == sorted(set().union(*by_worker))
            for worker, rows in enumerate(by_worker):
                assert union.rows[union.places[worker]].tolist() == rows
                others = set().union(*by_worker[:worker], *by_worker[worker + 1 :])
                assert union.rows[union.unshared(worker)].tolist() == [
                    row for row in rows if row not in others
                ]


def test_tensors_that_differ_are_an_error():
    for error in united([[([1], 5)], [([2], 5)]], what="table {}".format):
        assert "workers gave other tensors than worker" in error
        assert "give sparse tensors of the same shapes" in error

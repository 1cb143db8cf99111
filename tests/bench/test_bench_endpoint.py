"""`bench endpoint`: the counted sums are exact."""

from multiprocessing import Pipe

import numpy as np
import pytest

from peelsum.bench import endpoint as rates
from peelsum.bench.endpoint import WrongSumError, measure


def test_a_row_for_each_way_has_its_share_of_bare_sockets(capsys):
    rows = list(measure(32, seconds=0.02))
    assert [row["way"] for row in rows] == ["sockets", "bare"]
    bare = rows[-1]["packets_per_core_s"]
    for row in rows:
        assert row["share_of_bare"] == pytest.approx(row["packets_per_core_s"] / bare, abs=0.001)
    assert all(row["packets_per_s"] > 0 for row in rows)
    assert capsys.readouterr() == ("", "")


def test_a_result_that_differs_by_one_bit_is_noticed():
    sent = np.arange(4, dtype=np.uint32)
    with pytest.raises(WrongSumError, match="element 2: 3 came back instead of 2"):
        rates._require_equal(sent ^ np.uint32([0, 0, 1, 0]), sent)


def test_the_other_process_ends_without_a_traceback_if_this_one_was_interrupted():
    ours, theirs = Pipe()
    ours.close()
    rates._echo(theirs, 32)

"""Words of a broken worker give a wrong sum, or an error; they never write outside of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from peelsum.allreduce import Allreduce, Part
from peelsum.codec import Implementation


class AllCandidates:
    """A backend that sets every bit of the indexes of 33 elements, and of those that fill up their row."""

    lanes, workers, worker_id = 256, 1, 0

    def sum_words(self, parts: Sequence[Part]) -> list[Any]:
        sums = [part.words.copy() for part in parts]
        for part, words in zip(parts, sums, strict=True):
            if part.op == "or" and part.check is None:
                words[-2:] = 0xFFFFFFFF
        return sums


@pytest.mark.parametrize("implementation", ["reference", "cpu"])
@pytest.mark.parametrize("values", ["compact", "sketch"])
def test_bits_of_an_index_where_no_elements_are(implementation: Implementation, values: Any) -> None:
    reduce = Allreduce(AllCandidates(), forms="sparse", values=values, implementation=implementation)
    own = np.arange(33, dtype=np.float32)
    result = reduce.sum({"g": own})["g"]
    assert result.index == "bitmap"
    np.testing.assert_array_equal(result.values, own)
    np.testing.assert_array_equal(result.positions, np.arange(33))

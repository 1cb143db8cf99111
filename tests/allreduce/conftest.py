"""Workers as threads over a sum in poisoned memory, and an independent computation of the expected sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from poison import poisoned_memory
from sums_of_floats import scales_of, sent_as

from peelsum.allreduce import Allreduce, LocalSummation, Part

__all__ = ["echo", "exact", "make_workers", "poisoned_memory"]

T = TypeVar("T")


class Workers:
    """A group of workers that run each step concurrently, one thread each."""

    def __init__(
        self, count: int, lanes: int = 8, timeout_s: float = 30.0, form: str = "", **settings: Any
    ) -> None:
        settings |= sent_as(form) if form else {}
        self.summations = LocalSummation.group(count, lanes, timeout_s)
        self.reduces = [Allreduce(summation, **settings) for summation in self.summations]

    def each(self, work: Callable[[int, Allreduce], T]) -> list[T]:
        """Run work(worker_id, its Allreduce) on every worker at once; raise the first worker's error."""
        with ThreadPoolExecutor(len(self.reduces)) as pool:
            return list(pool.map(work, range(len(self.reduces)), self.reduces))

    def sum(self, inputs: Sequence[Any]) -> list[Any]:
        """Run one step with these inputs, one per worker."""
        return self.each(lambda worker_id, reduce: reduce.sum(inputs[worker_id]))

    def failures(self, inputs: Sequence[Any]) -> list[Exception]:
        """Run one step in which every worker must fail; return their errors."""

        def attempt(worker_id: int, reduce: Allreduce) -> Exception:
            with pytest.raises(Exception) as raised:  # noqa: PT011 - the caller looks at it
                reduce.sum(inputs[worker_id])
            return raised.value

        return self.each(attempt)


class Echo:
    """A backend of one worker, whose sums are copies of its own words."""

    lanes, workers, worker_id = 256, 1, 0

    def sum_words(self, parts: Sequence[Part]) -> list[Any]:
        return [part.words.copy() for part in parts]


@pytest.fixture
def echo() -> Echo:
    """Return a backend of one worker, for tests that need no others."""
    return Echo()


@pytest.fixture
def make_workers() -> Callable[..., Workers]:
    """Return the class `Workers`; tests cannot import it from here."""
    return Workers


@pytest.fixture
def exact() -> Callable[..., tuple[list[int] | None, list[list[int]], list[int]]]:
    """Return an independent computation, in Python's arithmetic, of scales, workers' integers, and sum."""

    def compute(
        arrays: Sequence[NDArray[np.float32]], fixed: Any
    ) -> tuple[list[int] | None, list[list[int]], list[int]]:
        flat = [[float(value) for value in array.reshape(-1)] for array in arrays]
        if not any(value for values in flat for value in values):
            zeros = [[0] * len(values) for values in flat]
            return None, zeros, zeros[0]
        scales = scales_of(arrays, fixed).tolist()
        quantized = [
            [
                round(Fraction(value) * Fraction(2) ** scale)
                for value, scale in zip(values, scales, strict=True)
            ]
            for values in flat
        ]
        return scales, quantized, [sum(column) for column in zip(*quantized, strict=True)]

    return compute

"""How tests get along with a busy machine: how long they wait at most, and what they try again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

#: Seconds. It ends tests that hang, and never measures speed. What takes ten on an idle machine ends in time
#: on one that is many times slower.
PATIENCE_S = 300.0


def tried_again(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test of measured times up to three times, because other programs can disturb one run of it."""

    @wraps(test)
    def again(*args: object, **kwargs: object) -> None:
        for _ in range(2):
            try:
                return test(*args, **kwargs)
            except AssertionError:
                continue
        return test(*args, **kwargs)

    return again


def with_longer_limits(
    test: Callable[[float], None], limits_s: tuple[float, ...] = (1.0, 10.0, 100.0)
) -> None:
    """Run a test of a timeout with a longer one until it passes: a busy machine needs the longer ones.

    limits_s: the timeouts, in seconds. What fails with the last of them fails.
    """
    *shorter, last = limits_s
    for limit_s in shorter:
        try:
            return test(limit_s)
        except AssertionError:
            continue
    return test(last)

"""Patience with a busy machine: how long tests wait at most, and what they try again."""

import time
from functools import wraps

#: Seconds. It ends tests that hang, and never measures speed. What takes ten on an idle machine ends in time
#: on one that is many times slower.
PATIENCE_S = 300.0


def until(condition, otherwise="not in time"):
    """Call `condition` until it returns a true value; return that. `otherwise` says what is wrong."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.005)
    return value


def tried_again(test):
    """Run a test of measured times up to three times, because other programs can disturb one run of it."""

    @wraps(test)
    def again(*args, **kwargs):
        for _ in range(2):
            try:
                return test(*args, **kwargs)
            except AssertionError:
                continue
        return test(*args, **kwargs)

    return again


def with_longer_timeouts(test):
    """Call a test of a timeout, in seconds, with a longer one if it fails: a busy machine needs that."""
    for timeout_s in (1.0, 5.0, 30.0):
        try:
            return test(timeout_s)
        except AssertionError:
            continue
    return test(PATIENCE_S)

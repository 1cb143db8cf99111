"""A star whose links have a delay and follow a schedule: sums are exact, and no quicker than the links."""

import threading
import time
from dataclasses import asdict

import numpy as np
import pytest
from patience import PATIENCE_S

from peelsum.allreduce import Part
from peelsum.topology import Star
from peelsum.transport.seats import plug_in

pytestmark = pytest.mark.usefixtures("forked_children")

WORKERS = 2
SUMS = 12
#: The server's port, then the workers': 40 ms from the schedule's second change on.
SLOW_S = 0.04


def sums(star, enough=lambda number, quick: number == SUMS):
    """Return the seconds of each sum, by worker, once `enough`; all sums must be exact.

    enough: called with how many sums were done, and whether the last was quick on any worker.
    """
    found = {}

    def run(seat):
        with plug_in(asdict(seat)) as summation:
            seconds, quick = [], 0
            while not enough(len(seconds), quick):
                own = np.arange(100, dtype=np.uint32) * (seat.worker_id + 2) + len(seconds)
                own[0] = bool(seconds) and seconds[-1] < SLOW_S
                started = time.monotonic()
                (total,) = summation.sum_words([Part(own, "add")])
                seconds.append(time.monotonic() - started)
                quick = int(total[0])
                assert np.array_equal(total[1:], np.arange(1, 100) * (2 + 3) + 2 * (len(seconds) - 1))
                time.sleep(0.05)
            found[seat.worker_id] = seconds

    threads = [threading.Thread(target=run, args=(seat,)) for seat in star.seats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert found.keys() == {0, 1}
    return found.values()


@pytest.mark.system
def test_sums_over_links_that_become_slow_are_exact_and_as_slow_as_the_links(tmp_path):
    schedule = tmp_path / "links.csv"
    schedule.write_text("at_s,mbit,delay_ms\n0,1000,0\n0.3,10,20\n")
    with Star(WORKERS, schedule=schedule) as star:
        found = sums(star)
    # A worker that waits for the other sees the link's time at least.
    assert min(seconds for rounds in found for seconds in rounds[-3:]) >= SLOW_S


def test_sums_over_links_that_become_quick_become_quick(tmp_path):
    """Most of them do: on a busy machine, one may take longer than the link would."""
    schedule = tmp_path / "links.csv"
    schedule.write_text("at_s,mbit,delay_ms\n0,10,20\n0.3,1000,0\n")
    with Star(WORKERS, schedule=schedule) as star:
        sums(star, lambda _, quick: quick > 0)


@pytest.mark.parametrize("loss", [pytest.param(0.0, marks=pytest.mark.slow), 0.02])
def test_a_constant_delay_is_of_both_links_in_both_directions(loss):
    with Star(WORKERS, delay_ms=15, loss=loss) as star:
        found = sums(star)
    assert min(seconds for rounds in found for seconds in rounds) >= 0.06

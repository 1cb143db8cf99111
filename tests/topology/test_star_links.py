"""A star whose links have a delay and follow a schedule: sums are exact, and no quicker than the links."""

import threading
import time
from dataclasses import asdict

import numpy as np
from patience import PATIENCE_S

from peelsum.allreduce import Part
from peelsum.topology import Star
from peelsum.transport.seats import plug_in

WORKERS = 2
SUMS = 12
#: The server's port, then the workers': 40 ms from the schedule's second change on.
SLOW_S = 0.04


def sums(star):
    """Return the seconds of each sum and the results of every worker, by worker."""
    found = {}

    def run(seat):
        with plug_in(asdict(seat)) as summation:
            rounds = []
            for number in range(SUMS):
                words = np.arange(100, dtype=np.uint32) * (seat.worker_id + 2) + number
                started = time.monotonic()
                (total,) = summation.sum_words([Part(words, "add")])
                rounds.append((time.monotonic() - started, total))
                time.sleep(0.05)
            found[seat.worker_id] = rounds

    threads = [threading.Thread(target=run, args=(seat,)) for seat in star.seats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    return found


def test_sums_over_links_that_change_are_exact_and_as_slow_as_the_links(tmp_path):
    schedule = tmp_path / "links.csv"
    schedule.write_text("at_s,mbit,delay_ms\n0,1000,0\n0.3,10,20\n")
    with Star(WORKERS, schedule=schedule) as star:
        found = sums(star)
    assert found.keys() == {0, 1}
    for rounds in found.values():
        for number, (_, total) in enumerate(rounds):
            exact = np.arange(100, dtype=np.uint64) * (2 + 3) + 2 * number
            assert np.array_equal(total, exact.astype(np.uint32))
    # A worker that waits for the other sees the link's time at least.
    assert min(seconds for rounds in found.values() for seconds, _ in rounds[-3:]) >= SLOW_S
    assert min(seconds for rounds in found.values() for seconds, _ in rounds) < SLOW_S


def test_a_constant_delay_is_of_the_server_s_port_and_the_worker_s():
    with Star(WORKERS, delay_ms=15) as star:
        found = sums(star)
    assert min(seconds for rounds in found.values() for seconds, _ in rounds) >= 0.03

"""Over sockets, workers are told of a reduce-scatter's last chunks before they take them for lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from peelsum.topology import Star
from peelsum.topology.star import Seat
from peelsum.transport import SwitchSummation, job_config

WORKERS, CALLS = 3, 100


def test_small_reduce_scatters_are_rarely_retransmitted():
    """The last result is for all, and brings the list. By a timer, each call had a retransmission."""

    def resends(seat: Seat) -> int:
        address = seat.switch_host, seat.switch_port
        with SwitchSummation(job_config(seat.admission), seat.worker_id, address) as summation:
            words = np.arange(WORKERS * 33, dtype=np.uint32)
            own = np.split(words * np.uint32(WORKERS), WORKERS)[summation.worker_id]
            np.testing.assert_array_equal(summation.reduce_scatter(words), own)
            before = summation.stats().resends
            for _ in range(CALLS):
                np.testing.assert_array_equal(summation.reduce_scatter(words), own)
            return summation.stats().resends - before

    with Star(WORKERS) as star, ThreadPoolExecutor(WORKERS) as pool:
        assert sum(pool.map(resends, star.seats)) < CALLS * WORKERS // 4

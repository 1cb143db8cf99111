"""The chunk ids of a run, chosen so that it meets nothing of an earlier run of the same generation."""

from __future__ import annotations

import numpy as np
import pytest
from test_endpoint import CONFIG, LANES, all_of, result

from peelsum.transport import TransportConfigError, WorkerEndpoint
from peelsum.transport.layout import run_start
from peelsum.wire import Kind


@pytest.mark.parametrize("workers_words", [3, 3 * LANES])
def test_a_run_goes_on_far_from_where_it_joined_and_others_may_still_join(workers_words: int) -> None:
    """A server that lost its state asks for the joining chunks again, until the run is a window ahead."""
    endpoint = WorkerEndpoint(CONFIG, 1)
    with pytest.raises(TransportConfigError, match="start_run: join with one sum"):
        endpoint.start_run(5)
    numbers = np.arange(1, 1 + workers_words, dtype=np.uint32)
    endpoint.submit(numbers, "add")
    with pytest.raises(TransportConfigError, match="start_run: join with one sum"):
        endpoint.start_run(5)
    joining = [int(packet["chunk_id"]) for packet in all_of(endpoint)]
    endpoint.receive(np.concatenate([result(chunk) for chunk in joining]), 0.1)
    endpoint.start_run(5)
    with pytest.raises(TransportConfigError, match="start_run: join with one sum"):
        endpoint.start_run(5)
    endpoint.submit(np.zeros(40 * LANES, np.uint32), "add")
    first = joining[-1] + 1 + 2 * CONFIG.window * (1 + 5)
    for step in range(2):
        chunks = [first + step * CONFIG.window + n & 0xFFFFFFFF for n in range(CONFIG.window)]
        assert [int(packet["chunk_id"]) for packet in all_of(endpoint)] == chunks
        need = np.concatenate([result(chunk, kind=Kind.NEED, bitmap=0b010) for chunk in joining])
        endpoint.receive(need, 0.2)
        again = all_of(endpoint, 0.2)
        assert [int(packet["chunk_id"]) for packet in again] == (joining if step == 0 else [])
        if again:
            resent = np.concatenate([packet["lanes"] for packet in again])[:workers_words]
            np.testing.assert_array_equal(resent, numbers)
        endpoint.receive(np.concatenate([result(chunk) for chunk in chunks]), 0.3)


def test_runs_start_apart_and_within_reach_of_serial_numbers() -> None:
    for window in (1, 8, 1024, 1 << 16):
        starts = [run_start(100, number, window) - 100 for number in (0, 1, 12345, (1 << 32) - 1)]
        assert all(0 < start < (1 << 31) - window and start % (2 * window) == 0 for start in starts)
        assert len(set(starts)) == 4

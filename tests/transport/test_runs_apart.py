"""The chunk ids of a run, chosen so that it meets nothing of an earlier run of the same generation."""

from __future__ import annotations

import numpy as np
import pytest
from job_hosts import LANES, WORKER_CONFIG, result, sent

from peelsum.transport import TransportConfigError, WorkerEndpoint
from peelsum.wire import Kind


@pytest.mark.parametrize("workers_words", [3, 3 * LANES])
def test_a_run_goes_on_far_from_where_it_joined_and_others_may_still_join(workers_words: int) -> None:
    """A server that lost its state asks for the joining chunks again, until the run is a window ahead."""
    endpoint = WorkerEndpoint(WORKER_CONFIG, 1)
    with pytest.raises(TransportConfigError, match="start_run: join with one sum"):
        endpoint.start_run(5)
    numbers = np.arange(1, 1 + workers_words, dtype=np.uint32)
    endpoint.submit(numbers, "add")
    with pytest.raises(TransportConfigError, match="start_run: join with one sum"):
        endpoint.start_run(5)
    joining = [int(packet["chunk_id"]) for packet in sent(endpoint)]
    endpoint.receive(np.concatenate([result(chunk) for chunk in joining]), 0.1)
    endpoint.start_run(5)
    with pytest.raises(TransportConfigError, match="start_run: join with one sum"):
        endpoint.start_run(5)
    endpoint.submit(np.zeros(40 * LANES, np.uint32), "add")
    first = joining[-1] + 1 + 2 * WORKER_CONFIG.window * (1 + 5)
    for step in range(2):
        chunks = [first + step * WORKER_CONFIG.window + n & 0xFFFFFFFF for n in range(WORKER_CONFIG.window)]
        assert [int(packet["chunk_id"]) for packet in sent(endpoint)] == chunks
        need = np.concatenate([result(chunk, kind=Kind.NEED, bitmap=0b010) for chunk in joining])
        endpoint.receive(need, 0.2)
        again = sent(endpoint, 0.2)
        assert [int(packet["chunk_id"]) for packet in again] == (joining if step == 0 else [])
        if again:
            resent = np.concatenate([packet["lanes"] for packet in again])[:workers_words]
            np.testing.assert_array_equal(resent, numbers)
        endpoint.receive(np.concatenate([result(chunk) for chunk in chunks]), 0.3)

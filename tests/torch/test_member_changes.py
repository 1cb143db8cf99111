"""Results that another rank sends, stalls while members change, and a lease that two threads use."""

import json
import socket
import threading

import numpy as np
import pytest
import torch

from peelsum.torch import switch_seat
from peelsum.torch.member_changes import MemberChanges
from peelsum.torch.sparse_sums import SparseTensor
from peelsum.transport.config import JobConfig
from peelsum.transport.errors import StalledError, TransportError
from peelsum.transport.lease import Generation, Lease


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_sparse_result_without_rows_replaces_another(dtype):
    empty = torch.sparse_coo_tensor(torch.zeros((1, 0), dtype=torch.int64), torch.zeros((0, 4)), (10, 4))
    other = torch.sparse_coo_tensor(torch.tensor([[3]]), torch.ones((1, 4)), (10, 4)).to(dtype)
    rest = SparseTensor(other).replace_content(
        np.concatenate([SparseTensor(empty.to(dtype)).content(), np.array([7], np.uint32)])
    )
    assert other.coalesce()._nnz() == 0
    assert rest.tolist() == [7]


class Scripted:
    """A backend of rank 0 of four, and its lease. Worker 1 is missing in the first `stalls` sums."""

    worker_id, workers, next_chunk = 0, 4, 7

    def __init__(self, stalls):
        self.stalls, self.leases, self.sent, self.agreed = stalls, [self], [], []
        self.config = JobConfig(1, 2, 4, 8)

    def agree(self, completed, chunk, patience_s, *, entry=False):
        silent = {rank for message in self.sent for rank in message["silent"]}
        members = tuple(rank for rank in range(4) if rank not in silent)
        admission = {
            "job_id": 1,
            "generation": 3 + len(self.agreed),
            "workers": len(members),
            "lanes": 8,
            "timeout_s": 1.0,
        }
        # The others lack the last sum, so that it is sent to them.
        self.agreed.append(
            Generation(admission, members, (completed, *[completed - 1] * 3)[: len(members)], ())
        )
        return self.agreed[-1]

    def send(self, **message):
        self.sent.append(message)

    def continue_in(self, config, worker_id):
        self.config, self.worker_id = config, worker_id

    def sum_words(self, parts):
        if self.stalls:
            self.stalls -= 1
            raise StalledError("worker 1 is missing", (1,))
        return [part.words for part in parts]

    def finish(self, *, check_leases):
        self.sum_words([])

    def close(self):
        self.sent.append({"call": "closed", "silent": ()})


@pytest.mark.parametrize("stalls", [0, 1, 2])
def test_a_rank_that_is_missing_while_others_enter_is_lost(stalls):
    backend = Scripted(stalls)
    changes = MemberChanges(backend)
    changes.admit()
    assert backend.sent == [{"call": "stalled", "silent": [rank]} for rank in range(1, 1 + stalls)]
    assert changes.members == tuple(rank for rank in range(4) if rank == 0 or rank > stalls)


@pytest.mark.parametrize("stalls", [0, 1, 2])
def test_a_rank_that_is_missing_at_the_end_is_lost(stalls):
    backend = Scripted(stalls)
    MemberChanges(backend).close()
    stalled = [{"call": "stalled", "silent": [rank]} for rank in range(1, 1 + stalls)]
    assert backend.sent == [*stalled, {"call": "closed", "silent": ()}]


def test_a_step_begins_while_a_sum_checks_the_lease():
    """The thread of the sums polls the connection as the training thread does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = threading.Thread(target=lambda: links.append(listening.accept()[0]))
        links: list[socket.socket] = []
        answering.start()
        lease: list[Lease] = []
        asking = threading.Thread(target=lambda: lease.append(Lease(listening.getsockname(), 30.0)))
        asking.start()
        answering.join()
        links[0].sendall(b'{"ok": 1}\n')
        asking.join()
        links[0].sendall(b'{"entering": [3], "change": 1}\n')
        beginning = threading.Thread(target=lambda: lease[0].begin_step(1, 1.0))
        beginning.daemon = True
        beginning.start()
        errors = []
        while beginning.is_alive():
            try:
                lease[0].check("job 1")
            except RuntimeError as error:
                errors.append(str(error))
                break
        assert not errors
        lease[0].close()
        links[0].close()


def test_a_rank_that_enters_is_ready_only_once_its_loops_are_compiled(monkeypatch):
    """From then on, the others wait for it."""
    happened = []
    monkeypatch.setattr(switch_seat, "warm_up", lambda lanes: happened.append(lanes))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            connection = listening.accept()[0]
            with connection, connection.makefile("rb") as lines:
                happened.append(json.loads(lines.readline())["call"])
                connection.sendall(b'{"entering": 3, "lanes": 64}\n')
                happened.append(json.loads(lines.readline())["call"])

        answering = threading.Thread(target=answer)
        answering.start()
        host, port = listening.getsockname()
        with pytest.raises(TransportError, match="the run has ended"):
            switch_seat.connect_to_run(f"//{host}:{port}", None)
        answering.join()
    assert happened == ["enter", 64, "ready"]

"""Results that another rank sends, stalls while members change, and a lease that two threads use."""

import json
import socket
import threading

import numpy as np
import pytest

from peelsum.summation import Part
from peelsum.torch import switch_seat
from peelsum.torch.member_changes import MemberChanges, OutdatedError, describe_change
from peelsum.torch.sum_queue import SumQueue
from peelsum.transport.config import JobConfig
from peelsum.transport.errors import StalledError, TransportError
from peelsum.transport.lease import Generation, Lease, RankEntersError


class Scripted:
    """A backend of rank 0 of four, and its lease. Worker 1 is missing in the first `stalls` sums.

    ahead: how many sums this rank has completed more than the others.
    """

    worker_id, workers, lanes, next_chunk = 0, 4, 8, 7

    def __init__(self, stalls, ahead=1):
        self.stalls, self.leases, self.sent, self.agreed = stalls, [self], [], []
        self.ahead = ahead
        self.config = JobConfig(1, 2, 4, 8)

    def agree(self, completed, chunk, patience_s, *, entry=False):
        silent = {rank for message in self.sent for rank in message["silent"]}
        members = tuple(rank for rank in range(4) if rank not in silent)
        admission = {"job_id": 1, "generation": 3 + len(self.agreed), "workers": len(members)}
        admission |= {"lanes": 8, "timeout_s": 1.0}
        counts = (completed, *[completed - self.ahead] * 3)[: len(members)]
        self.agreed.append(Generation(admission, members, counts, ()))
        return self.agreed[-1]

    def send(self, **message):
        self.sent.append(message)

    def continue_in(self, config, worker_id):
        self.config, self.worker_id = config, worker_id

    def sum_words(self, parts):
        if self.stalls:
            self.stalls -= 1
            missing = min(1, self.config.workers - 1)
            raise StalledError(f"worker {missing} is missing", (missing,))
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


def test_a_rank_that_is_left_alone_and_missing_itself_fails_at_once():
    """The controller would not answer: nobody is left to agree on a change with."""
    changes = MemberChanges(backend := Scripted(3))
    changes.admit()
    assert changes.members == (0,)
    sent, agreed, backend.stalls = len(backend.sent), len(backend.agreed), 1
    with pytest.raises(StalledError, match="worker 0 is missing"):
        changes.sum_words([Part(np.zeros(1, np.uint32), "or")])
    assert (len(backend.sent), len(backend.agreed)) == (sent, agreed)


class LastExchangeLost(Scripted):
    """The others have completed the first sum, and send its last result: its size, 3, and its words."""

    def __init__(self):
        super().__init__(0, ahead=-1)
        self.exchanges = []

    def sum_words(self, parts):
        self.exchanges.append(len(parts[0].words))
        if self.exchanges == [1, 2]:
            raise StalledError("worker 1 is missing", (1,))
        received = {3: [3], 4: [7, 8, 9]}.get(len(self.exchanges))
        return [part.words if received is None else np.array(received, np.uint32) for part in parts]


class TwoExchanges:
    """A sum of two exchanges, or of more than the others have made."""

    def __init__(self, queue, more):
        self.queue, self.more, self.results = queue, more, []

    def begin(self):
        self.results.append(self.queue.members)

    def __call__(self):
        self.results += self.queue.sum_words([Part(np.zeros(1, np.uint32), "or")])
        self.results += self.queue.sum_words([Part(np.zeros(size, np.uint32), "add") for size in (2, 1)])
        self.results.append(self.queue.members)
        if self.more:
            self.queue.sum_words([Part(np.zeros(1, np.uint32), "or")])


@pytest.mark.parametrize("more", [False, True])
def test_a_sum_that_others_have_completed_ends_with_their_result_and_its_old_members(more):
    """It does not begin again, so that it updates residuals as usual; the next sum has the new members."""
    backend = LastExchangeLost()
    queue = SumQueue(MemberChanges(backend), owns_backend=False)
    work = TwoExchanges(queue, more)
    done = queue.submit(work)
    if more:
        with pytest.raises(OutdatedError):
            done.result()
        return
    done.result()
    assert [list(item) for item in work.results] == [[0, 1, 2, 3], [0], [7, 8], [9], [0, 1, 2, 3]]
    assert backend.exchanges == [1, 2, 1, 3]
    (later := TwoExchanges(queue, False)).results.clear()
    queue.submit(later).result()
    assert later.results[0] == later.results[-1] == queue.members == (0, 2, 3)
    assert backend.agreed[0].completed == (0, 1, 1)
    queue.close()


@pytest.mark.parametrize("stalls", [0, 1, 2])
def test_a_rank_that_is_missing_at_the_end_is_lost(stalls):
    backend = Scripted(stalls)
    MemberChanges(backend).close()
    stalled = [{"call": "stalled", "silent": [rank]} for rank in range(1, 1 + stalls)]
    assert backend.sent == [*stalled, {"call": "closed", "silent": ()}]


class Entered(Scripted):
    """A rank enters while this one leaves."""

    reports = 0

    def report(self, sums, chunk):
        self.reports += 1

    def finish(self, *, check_leases):
        if not self.reports:
            raise RankEntersError("a rank enters")


def test_a_rank_that_leaves_while_another_enters_reports_as_all_others():
    """They wait for its report, and it waits for theirs."""
    backend = Entered(0)
    MemberChanges(backend).close()
    assert backend.reports == 1
    assert not backend.agreed
    assert backend.sent == [{"call": "closed", "silent": ()}]


def test_a_step_begins_while_a_sum_checks_the_lease():
    """The thread of the sums polls the connection as the training thread does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = threading.Thread(target=lambda: links.append(listening.accept()[0]))
        links = []
        answering.start()
        lease = []
        asking = threading.Thread(target=lambda: lease.append(Lease(listening.getsockname(), 30.0)))
        asking.start()
        answering.join()
        links[0].sendall(b'{"ok": 1}\n')
        asking.join()
        links[0].sendall(b'{"entering": [3], "change": 1}\n')

        def begin():
            with pytest.raises(TransportError, match="no answer in 1 s"):
                lease[0].begin_step(1, 1.0)

        beginning = threading.Thread(target=begin, daemon=True)
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


@pytest.mark.parametrize(
    ("lost", "entered", "members", "text"),
    [
        ([0], [], [1, 2], "rank 0 was lost, with what it had not sent yet; ranks 1, 2 continue"),
        ([0, 2], [], [1], "ranks 0, 2 were lost, with what they had not sent yet; rank 1 continues"),
        ([], [0, 2], [0, 2], "ranks 0, 2 enter; ranks 0, 2 continue"),
        ([], [], [0, 2], "no rank enters; ranks 0, 2 continue"),
        ([1], [0], [0], "rank 1 was lost, with what it had not sent yet, rank 0 enters; rank 0 continues"),
    ],
)
def test_a_change_is_described_in_one_sentence(lost, entered, members, text):
    assert describe_change(lost, entered, members, 7) == f"{text} in generation 7"

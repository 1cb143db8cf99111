"""Requests to start a served job: one holder at a time, then the longest waiting, and no invalid requests."""

import errno
import json
import os
import select
import socket

import pytest
from patience import PATIENCE_S

from peelsum.control.cluster.requests import (
    LEASE_TIMEOUT_S,
    MAX_CONNECTIONS,
    REQUEST_TIMEOUT_S,
    RequestServer,
)
from peelsum.requests import encode_line


@pytest.fixture
def place():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def requests(place):
    with RequestServer(place, "job 1") as served:
        yield served


@pytest.fixture
def link(place):
    """Yield a function that opens a connection and sends a first line."""
    opened = []

    def made(said=b""):
        one = socket.create_connection(place.getsockname(), PATIENCE_S)
        opened.append(one)
        one.sendall(said)
        return one

    yield made
    for one in opened:
        one.close()


def ask(process):
    return encode_line({"call": "start", "process": process})


def heard(link):
    """Return the last object that a connection received before it was closed."""
    with link.makefile() as said:
        return json.loads(said.read())


def listen(requests, now=0.0):
    """Accept a connection, and read what it says."""
    for _ in range(2):
        requests.next_client(now, PATIENCE_S)


def hear_all(requests, link):
    """Read what a connection sends, until it is closed."""
    link.setblocking(False)
    while not select.select([link], [], [], 0)[0]:
        requests.next_client(0.0, 0.1)
    link.setblocking(True)


def hold(requests, link, process, answer=None):
    """Return the connection of a process that has been given the job."""
    first = link(ask(process))
    await_start(requests)
    requests.respond(answer or {})
    return first


def await_start(requests, now=0.0):
    """Process requests until a new one holds the job."""
    while not requests.next_client(now, PATIENCE_S):
        pass


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b'{"call": "start"}\n',
        b'{"call": "start", "process": "1"}\n',
        b'{"call": "start", "process": 1, "more": 2}\n',
        b'{"call": "start", "process": 1, "ranks": true}\n',
        b'{"call": "list"}\n',
        b'{"call": "leave"}\n',
        b'{"call": "join", "process": 1, "run": "x"}\n',
        b'{"call": "join", "process": 1, "rank": "1", "run": "x"}\n',
        b'{"call": []}\n',
        b"[" * 100_000 + b"\n",
        b"[]\n",
        b"\0" * 1024,
        os.urandom(3000).replace(b"\n", b"") + b"\n",
    ],
)
def test_who_says_something_else_is_told_so(requests, link, said):
    stranger = link(said)
    hear_all(requests, stranger)
    assert "job 1: takes requests of a training's rank 0" in heard(stranger)["error"]
    assert requests.holder is None


def test_who_connects_and_leaves_changes_nothing(requests, link):
    first = hold(requests, link, 7, {"switch": []})
    link().close()
    for _ in range(2):
        assert not requests.next_client(0.0, PATIENCE_S)
    assert requests.holder == "process 7 of 127.0.0.1"
    first.setblocking(False)
    assert first.recv(100) == b'{"switch": []}\n'
    with pytest.raises(BlockingIOError):
        first.recv(100)


def test_who_asks_and_leaves_gets_no_run(requests, link):
    """As do launchers that give up: each run would take seconds."""
    for process in range(5):
        link(ask(process)).close()
    for _ in range(10):
        assert not requests.next_client(0.0, 0.1)
    asking = link(ask(8))
    await_start(requests)
    assert requests.holder == "process 8 of 127.0.0.1"
    asking.close()


def test_without_descriptors_a_connection_is_accepted_later(place, link):
    class Full:
        """The listening socket of a process that has no descriptors for a while."""

        accepts = 0

        def __getattr__(self, name):
            return getattr(place, name)

        def accept(self):
            self.accepts += 1
            if self.accepts < 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return place.accept()

    full = Full()
    with RequestServer(full, "job 1") as requests:
        link(ask(8))
        await_start(requests)
        assert requests.holder == "process 8 of 127.0.0.1"
    assert full.accepts >= 3


def test_who_says_nothing_is_not_waited_for(requests, link):
    silent = link()
    assert not requests.next_client(100.0, PATIENCE_S)
    asking = link(ask(8))
    await_start(requests, 101.0)
    assert requests.holder == "process 8 of 127.0.0.1"
    requests.next_client(100.0 + REQUEST_TIMEOUT_S, 0)
    assert "this was not a request" in heard(silent)["error"]
    asking.close()


def test_a_request_may_come_in_pieces(requests, link):
    said = ask(12)
    slow = link(said[:7])
    listen(requests)
    slow.sendall(said[7:])
    await_start(requests)
    assert requests.holder == "process 12 of 127.0.0.1"


def test_nobody_starts_a_job_that_is_held(requests, link):
    hold(requests, link, 1)
    second = link(ask(2))
    listen(requests)
    assert not requests.next_client(LEASE_TIMEOUT_S - 0.1, 0)
    assert not requests.next_client(LEASE_TIMEOUT_S, 0)
    holder = "job 1: is in use by process 1 of 127.0.0.1"
    assert heard(second) == {"error": f"{holder}; end that training, or wait for its end"}


def test_who_waits_starts_when_the_holder_has_gone(requests, link):
    """As torchrun starts ranks again: it may be heard of the new before the end of the old."""
    first = hold(requests, link, 1)
    second = link(ask(2))
    listen(requests, 1.0)
    link(ask(3))
    listen(requests, 2.0)
    first.close()
    await_start(requests, 3.0)
    assert requests.holder == "process 2 of 127.0.0.1"
    second.close()
    await_start(requests, 4.0)
    assert requests.holder == "process 3 of 127.0.0.1"


def test_who_could_not_be_started_holds_nothing(requests, link):
    first = hold(requests, link, 1, {"error": "switch: has gone"})
    assert heard(first) == {"error": "switch: has gone"}
    assert requests.holder is None
    link(ask(2))
    await_start(requests)


def test_who_has_gone_before_the_answer_holds_nothing(requests, link):
    link(ask(1)).close()
    second = link(ask(2))
    for _ in range(10):
        if requests.next_client(0.0, PATIENCE_S):
            requests.respond({"for": requests.holder})
        if requests.holder == "process 2 of 127.0.0.1":
            break
    assert requests.holder == "process 2 of 127.0.0.1"
    with second.makefile() as said:
        assert json.loads(said.readline()) == {"for": "process 2 of 127.0.0.1"}


def test_of_too_many_the_longest_silent_one_is_closed(requests, link):
    first = hold(requests, link, 1)
    guests = [link() for _ in range(MAX_CONNECTIONS)]
    hear_all(requests, guests[0])
    assert guests[0].recv(1) == b""
    guests[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        guests[-1].recv(1)
    assert requests.holder == "process 1 of 127.0.0.1"
    assert first.fileno() > 0


def test_beyond_the_most_that_wait_the_newest_is_closed(requests, link):
    waiting = [link(ask(number)) for number in range(MAX_CONNECTIONS)]
    await_start(requests)
    while sum(bool(client.request) for client in requests._clients.values()) < MAX_CONNECTIONS:
        requests.next_client(0.0, 0.1)
    late = link()
    hear_all(requests, late)
    assert late.recv(1) == b""
    assert requests.holder is not None
    assert len(waiting) == MAX_CONNECTIONS


def test_groups_get_leases_of_their_own_beside_the_jobs(requests, link):
    hold(requests, link, 1, {"admission": {}})
    asking = {process: {"call": "start", "process": process, "ranks": process} for process in (2, 3)}
    links = {process: link(encode_line(request)) for process, request in asking.items()}
    guests = {}
    while len(guests) < 2:
        if guest := requests.next_client(LEASE_TIMEOUT_S + 1, PATIENCE_S):
            guests[guest.ranks] = guest
            requests.respond({"refused": "no room"} if guest.ranks == 3 else {"admission": {}})
    assert {process: guest.ranks for process, guest in guests.items()} == {2: 2, 3: 3}
    assert "process 1 of" in requests.holder
    assert heard(links[3]) == {"refused": "no room"}
    assert (guests[2].closed, guests[3].closed) == (False, True)
    links[2].close()
    while not guests[2].closed:
        requests.next_client(0.0, PATIENCE_S)
    assert "process 1 of" in requests.holder


def joined(requests, link, process):
    """Return the connection of a rank that has joined a run, and the client."""
    rank = link(encode_line({"call": "join", "process": process, "rank": 1, "run": "x"}))
    while not (client := requests.next_client(0.0, PATIENCE_S)):
        pass
    requests.respond({"joined": 1})
    return rank, client


def test_a_rank_that_has_joined_sends_and_gets_messages(requests, link):
    hold(requests, link, 1)
    rank, client = joined(requests, link, 2)
    message = {"call": "completed", "change": 1, "sums": 7, "chunk": 9}
    line = encode_line(message)
    for part in (line[:9], line[9:] + encode_line({"call": "leave"})):
        rank.sendall(part)
        requests.next_client(0.0, PATIENCE_S)
    assert list(client.inbox) == [message, {"call": "leave"}]
    client.outbox += [{"lost": [], "change": 1}, {"change": 2}]
    requests.next_client(0.0, 0.0)
    with rank.makefile() as said:
        answers = [json.loads(said.readline()) for _ in range(3)]
        assert answers == [{"joined": 1}, {"lost": [], "change": 1}, {"change": 2}]
    client.outbox.append({"end": "too slow"})
    requests.next_client(0.0, 0.0)
    assert client.closed


@pytest.mark.parametrize(
    "said",
    [b"hello\n", b"\n", b'{"call": "start", "process": 1}\n', b'{"call": "completed"}\n', b"x" * 1024],
    ids=["text", "empty", "request", "fields", "long"],
)
def test_a_rank_that_sends_anything_else_is_closed(requests, link, said):
    rank, client = joined(requests, link, 2)
    rank.sendall(said)
    while not client.closed:
        requests.next_client(0.0, PATIENCE_S)


def test_a_rank_that_reads_nothing_is_not_waited_for(requests, link):
    _, client = joined(requests, link, 2)
    while not client.closed:
        client.outbox.append({"lost": ["x" * (1 << 16)]})
        requests.next_client(0.0, 0.0)


def test_the_lease_passes_to_an_heir(requests, link):
    first = link(ask(1))
    while not (client := requests.next_client(0.0, PATIENCE_S)):
        pass
    requests.respond({"admission": {}})
    ranks, heirs = zip(*(joined(requests, link, number) for number in (2, 3)), strict=True)
    client.successor = lambda: next((heir for heir in heirs if not heir.closed), None)
    first.close()
    for connection, closed, holder in zip(ranks, (client, *heirs), ("process 2", "process 3"), strict=False):
        while not closed.closed:
            requests.next_client(0.0, PATIENCE_S)
        assert requests.holder == f"{holder} of 127.0.0.1"
        connection.close()
    while not heirs[-1].closed:
        requests.next_client(0.0, PATIENCE_S)
    assert requests.holder is None

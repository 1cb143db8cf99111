"""A rank's lease: what the controller's lines mean to a sum that waits, and to a step that begins."""

import json
import os
import socket
import threading
from contextlib import closing, contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import PATIENCE_S, until

from peelsum.requests import encode_line
from peelsum.transport.errors import TransportError
from peelsum.transport.lease import Lease, RankEntersError, RankLostError

LOST = {"rank": 2, "process": 17, "host": "10.0.0.3"}
GENERATION = {
    "members": [0, 1, 3],
    "completed": [5, 4, 5],
    "entered": [3],
    "admission": {"job_id": 1},
    "switch": ["h:1", "h:2", "h:3", "h:4"],
}


@contextmanager
def leased(more=b""):
    """Yield a lease, and the controller's end of its connection; `more` arrives with the response."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ends = []

        def answer():
            end, _ = listening.accept()
            ends.append(end)
            end.recv(1000)
            end.sendall(b'{"joined": 1}\n' + more)

        thread = threading.Thread(target=answer)
        thread.start()
        with closing(Lease(listening.getsockname(), PATIENCE_S, rank=1, run="x")) as lease:
            thread.join()
            with closing(ends[0]):
                yield lease, ends[0]


@pytest.fixture
def pair():
    with leased() as pair:
        yield pair


def say(end, **message):
    end.sendall(json.dumps(message).encode() + b"\n")


def heard(end, count):
    """Return the rank's next messages."""
    with end.makefile() as lines:
        return [json.loads(lines.readline()) for _ in range(count)]


def error_of(lease):
    """Return the error of a check, once there is one."""

    def raised():
        try:
            lease.check("job 1")
        except TransportError as error:
            return error

    return until(raised)


def test_without_a_message_nothing_happens(pair):
    lease, _ = pair
    lease.check("job 1")
    assert not lease.begin_step(0, PATIENCE_S)


def test_a_loss_names_rank_process_and_host(pair):
    lease, end = pair
    say(end, lost=[LOST, {**LOST, "rank": 4}], change=1)
    error = error_of(lease)
    assert isinstance(error, RankLostError)
    who = "rank 2 (process 17 of 10.0.0.3), rank 4 (process 17 of 10.0.0.3) were lost"
    assert str(error.during("step 3")).startswith(f"job 1, step 3: {who}; see in the output")


def test_of_lost_ranks_those_are_named_that_have_reported_an_error(pair):
    lease, end = pair
    say(end, lost=[LOST, {**LOST, "rank": 4, "reason": "still waiting for worker 3"}], change=1)
    error = error_of(lease)
    assert isinstance(error, RankLostError)
    who = "rank 4 (process 17 of 10.0.0.3) has failed: still waiting for worker 3"
    assert str(error.during("step 3")) == f"job 1, step 3: {who}"


def test_an_error_is_reported_in_a_line_that_controllers_take(pair):
    lease, end = pair
    lease.fail("\N{SNOWMAN}" * 10_000)
    lease.fail("two\nlines" + "\x1b" * 10_000)
    longest = '"' * 400
    lease.fail(longest)
    assert [item["reason"] for item in heard(end, 3)] == ["?" * 400, "two lines" + "?" * 391, longest]
    assert len(encode_line({"call": "failed", "reason": longest})) < 1 << 10


@pytest.mark.parametrize("read_with_response", [True, False])
def test_a_loss_that_is_told_right_after_the_response_is_not_missed(read_with_response):
    """As when another rank ends while this one waits for a processor to read the response."""
    line = json.dumps({"lost": [LOST], "change": 1}).encode() + b"\n"
    cut = len(line) if read_with_response else 7
    with leased(line[:cut]) as (lease, end):
        assert json.loads(lease.response) == {"joined": 1}
        end.sendall(line[cut:])
        assert isinstance(error_of(lease), RankLostError)


def test_a_rank_that_leaves_is_no_loss_to_one_that_leaves(pair):
    lease, end = pair
    say(end, lost=[], change=1)
    assert isinstance(error_of(lease), RankLostError)
    assert not lease.is_withdrawn
    end.sendall(b'{"end": "too slow"}\n')
    until(lambda: lease.check("job 1", leaving=True) or lease.is_withdrawn)


def test_a_rank_that_leaves_hears_once_that_another_enters(pair):
    lease, end = pair
    say(end, entering=[3], change=2)
    until(lambda: lease.check("job 1", leaving=True) or lease._entry_change == 2)
    say(end, before_step=7, change=2)
    with pytest.raises(RankEntersError):
        until(lambda: lease.check("job 1", leaving=True))
    lease.check("job 1", leaving=True)
    assert heard(end, 1) == [{"call": "step", "change": 2, "step": -1}]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"end": "too slow; rest"}\n', "this rank is no longer a member of its run: too slow; rest"),
        (b"", "has closed the connection of this rank"),
        (b"hello\n", "has closed the connection of this rank"),
        (b'{"lost": [{}]}\n', "sent a malformed message"),
        (b'{"lost": 3}\n', "sent a malformed message"),
    ],
)
def test_the_end_of_a_membership(pair, line, text):
    lease, end = pair
    end.sendall(line)
    if not line:
        end.close()
    assert text in str(error_of(lease))


def test_the_report_of_the_last_loss_counts(pair):
    lease, end = pair
    say(end, lost=[LOST], change=1)
    say(end, **GENERATION, change=7)
    say(end, lost=[], change=2)
    say(end, **GENERATION, change=2)
    generation = lease.agree(5, 99, PATIENCE_S)
    assert (generation.members, generation.completed, generation.entered) == ((0, 1, 3), (5, 4, 5), (3,))
    report = {"call": "completed", "sums": 5, "chunk": 99}
    assert heard(end, 2) == [{**report, "change": 1}, {**report, "change": 2}]


def test_no_generation_in_time(pair):
    lease, end = pair
    say(end, lost=[LOST], change=1)
    with pytest.raises(TransportError, match="no answer in"):
        lease.agree(0, 0, 0.1)


def test_ranks_enter_before_the_step_that_the_controller_tells(pair):
    lease, end = pair
    assert not lease.begin_step(4, PATIENCE_S)
    say(end, entering=[2], change=3)
    say(end, before_step=6, change=3)
    assert not lease.begin_step(5, PATIENCE_S)
    assert heard(end, 1) == [{"call": "step", "change": 3, "step": 4}]
    assert lease.begin_step(6, PATIENCE_S)
    assert not lease.begin_step(7, PATIENCE_S)


def test_a_loss_cancels_an_entry(pair):
    lease, end = pair
    say(end, entering=[2], change=3)
    say(end, lost=[LOST], change=4)
    assert not lease.begin_step(5, PATIENCE_S)
    assert isinstance(error_of(lease), RankLostError)


def test_a_rank_says_that_it_waits_for_the_steps_of_others(pair):
    lease, end = pair
    say(end, entering=[2], change=3)
    with pytest.raises(TransportError, match="when a rank entered"):
        until(lambda: lease.begin_step(5, 0.1))
    step, waiting = heard(end, 2)
    assert step == {"call": "step", "change": 3, "step": -1}
    assert waiting == {"call": "waiting", "change": 3}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
_NAMES = st.sampled_from([*GENERATION, "lost", "change", "entering", "before_step", "end"])
_LINES = st.dictionaries(_NAMES, _VALUES).map(lambda values: json.dumps(values).encode())


def test_a_rank_that_enters_waits_for_a_generation_that_has_it(pair):
    lease, end = pair
    say(end, **{**GENERATION, "members": [0, 1, 2]}, change=1)
    say(end, **GENERATION, change=2)
    assert lease.enter(3, PATIENCE_S).switch[3] == "h:4"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(line=_LINES | st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")))
def test_a_line_of_any_content_is_a_message_or_an_error_of_the_transport(pair, line):
    lease, end = pair
    lease._messages.clear()
    lease._ended, lease._step_is_due = False, False
    end.sendall(line + b"\n")
    for call in (
        lambda: lease.check("job 1"),
        lambda: lease.begin_step(1, 0.01),
        lambda: lease.agree(0, 0, 0.01),
        lambda: lease.enter(3, 0.01),
    ):
        try:
            call()
        except TransportError:
            continue


def test_a_forked_child_does_not_keep_the_lease(pair):
    _, end = pair
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    end.setblocking(False)
    with pytest.raises(BlockingIOError):
        end.recv(1)

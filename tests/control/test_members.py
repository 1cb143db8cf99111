"""The members of a run: who is told of a loss, and when those that are left have agreed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peelsum.control.cluster.members import Members, latest_chunk
from peelsum.control.cluster.requests import ConnectedClient
from peelsum.requests import MESSAGE_FIELDS, parsed_request

PATIENCE_S = 30.0


def client(rank):
    return ConnectedClient(None, "10.0.0.1", 0.0, request={"call": "join", "process": 100 + rank})


def ready_client(rank):
    """Return a client that has said that it is ready."""
    entering = client(rank)
    entering.inbox.append({"call": "ready"})
    return entering


@pytest.fixture(params=[False, True], ids=["ends", "survives"])
def survives(request):
    return request.param


@pytest.fixture
def members(survives):
    return made(survives=survives)


def made(*, survives, ranks=4):
    run = Members(client(0), ranks, survives=survives, patience_s=PATIENCE_S)
    assert not any(run.join(rank, client(rank)) for rank in range(1, ranks))
    return run


def lost(*ranks):
    return [{"rank": rank, "process": 100 + rank, "host": "10.0.0.1"} for rank in ranks]


def heard(run):
    """Remove and return what each member has been sent."""
    said = {rank: list(one.outbox) for rank, one in run.clients.items()}
    for one in run.clients.values():
        one.outbox.clear()
    return said


def say(run, rank, call, **values):
    run.clients[rank].inbox.append({"call": call, **values})


def sums_of(reports):
    return {rank: one.sums for rank, one in reports.items()}


def report(run, sums, change):
    for rank, count in sums.items():
        say(run, rank, "completed", change=change, sums=count, chunk=rank)


def that_waits_for_rank_3():
    """Return a run that has lost rank 0, and whose ranks 1 and 2 have reported."""
    run = made(survives=True)
    run.clients[0].closed = True
    run.update(0.0)
    report(run, {1: 7, 2: 6}, change=1)
    return run


def test_the_others_hear_of_a_closed_connection(members):
    members.clients[2].closed = True
    assert members.update(0.0) == ["rank 2: process 102 of 10.0.0.1 was lost"]
    assert heard(members) == {rank: [{"lost": lost(2), "change": 1}] for rank in (0, 1, 3)}
    assert members.update(0.0) == []
    assert not any(heard(members).values())


@pytest.mark.parametrize("closed", [False, True])
def test_who_leaves_is_not_lost(members, survives, closed):
    """Also if the connection's end is noticed together with the message."""
    say(members, 2, "leave")
    members.clients[2].closed = closed
    assert members.update(0.0) == []
    assert [said for said in heard(members).values() if said] == [[{"lost": [], "change": 1}]] * 3 * survives
    assert set(members.clients) == {0, 1, 3}


def test_a_rank_joins_once(members):
    assert members.join(4, client(4)) == "rank 4: the run has ranks 0 to 3"
    assert members.join(-1, client(0)) == "rank -1: the run has ranks 0 to 3"
    assert "has joined before" in members.join(3, client(3))
    assert members.is_token(members.token)
    assert not members.is_token("")
    assert not members.is_token("\ud800")


def test_who_joins_late_hears_of_earlier_losses():
    run = Members(client(0), 3, survives=False, patience_s=PATIENCE_S)
    run.join(1, client(1))
    run.clients[1].closed = True
    run.update(0.0)
    late = client(2)
    assert run.join(2, late) == ""
    assert list(late.outbox) == [{"lost": lost(1), "change": 1}]


def test_the_lease_goes_to_the_first_that_is_connected(members):
    members.clients[0].closed = members.clients[1].closed = True
    assert members.first() is members.clients[2]


def test_those_that_are_left_agree_when_all_have_reported():
    run = that_waits_for_rank_3()
    run.update(1.0)
    assert run.agreed() is None
    report(run, {3: 7}, change=1)
    run.update(2.0)
    assert sums_of(run.agreed()) == {1: 7, 2: 6, 3: 7}
    assert run.agreed() is None


def test_another_loss_begins_again():
    run = that_waits_for_rank_3()
    run.update(1.0)
    run.clients[2].closed = True
    report(run, {3: 7}, change=1)
    run.update(2.0)
    assert run.agreed() is None
    assert heard(run)[1][-1] == {"lost": lost(2), "change": 2}
    report(run, {1: 7, 3: 7}, change=1)
    run.update(3.0)
    assert run.agreed() is None
    report(run, {1: 7, 3: 7}, change=2)
    run.update(4.0)
    assert sums_of(run.agreed()) == {1: 7, 3: 7}


def said_ends(run):
    """Return the ranks that have been told why they are no longer members, and what to do."""
    ends = {rank: message["end"] for rank, said in heard(run).items() for message in said if "end" in message}
    remedies = ("; start it again", "; let another process enter in its place")
    assert all(end.endswith(remedies) for end in ends.values())
    return set(ends)


def test_who_does_not_report_is_closed():
    """The others have waited for it since the first of them has reported; before, all may compute."""
    run = made(survives=True)
    run.clients[0].closed = True
    run.update(0.0)
    run.update(2 * PATIENCE_S)
    assert not said_ends(run)
    report(run, {1: 7}, change=1)
    run.update(2 * PATIENCE_S)
    report(run, {2: 6}, change=1)
    run.update(3 * PATIENCE_S - 0.1)
    assert not said_ends(run)
    run.update(3 * PATIENCE_S)
    assert "others have waited for it for 30 s" in run.clients[3].outbox[-1]["end"]
    assert said_ends(run) == {3}


def test_who_makes_no_progress_is_closed_if_the_run_survives_that(members, survives):
    say(members, 1, "stalled", silent=[1, 3, 9, "x", [], True])
    members.update(0.0)
    assert said_ends(members) == ({3} if survives else set())


def with_a_free_seat():
    """Return a run of ranks 0 and 1 whose rank 2 was lost."""
    run = made(survives=True, ranks=3)
    run.clients[2].closed = True
    run.update(0.0)
    report(run, {0: 5, 1: 5}, change=1)
    run.update(0.0)
    assert run.agreed().keys() == {0, 1}
    heard(run)
    return run


def test_a_rank_enters_before_the_step_after_the_last_that_any_is_in():
    run = with_a_free_seat()
    late = ready_client(2)
    assert run.enter(late, 0.0) == 2
    assert run.enter(client(3), 0.0) is None
    run.update(1.0)
    assert heard(run) == {rank: [{"entering": [2], "change": 2}] for rank in (0, 1)}
    say(run, 0, "step", change=2, step=7)
    say(run, 1, "step", change=1, step=9)
    run.update(2.0)
    assert not any(heard(run).values())
    say(run, 1, "step", change=2, step=6)
    run.update(3.0)
    assert heard(run) == {rank: [{"before_step": 8, "change": 2}] for rank in (0, 1)}
    report(run, {0: 9, 1: 9}, change=2)
    run.update(4.0)
    assert sums_of(run.agreed()) == {0: 9, 1: 9}
    assert run.admit_entering() == [2]
    assert run.clients[2] is late
    run.update(5.0)
    assert not any(heard(run).values())


def test_who_does_not_say_its_step_is_closed_once_others_wait():
    run = with_a_free_seat()
    run.enter(ready_client(2), 0.0)
    run.update(0.0)
    say(run, 0, "step", change=2, step=7)  # in a sum, and then it computes
    run.update(PATIENCE_S)
    run.update(2 * PATIENCE_S)
    assert not said_ends(run)
    for change in (1, 2):
        say(run, 0, "waiting", change=change)
        run.update(change * 2 * PATIENCE_S)
    run.update(5 * PATIENCE_S - 0.1)
    assert not said_ends(run)
    run.update(5 * PATIENCE_S)
    assert said_ends(run) == {1}


def test_patience_for_reports_does_not_include_that_for_steps():
    run = with_a_free_seat()
    run.enter(ready_client(2), 0.0)
    run.update(0.0)
    for rank in (0, 1):
        say(run, rank, "step", change=2, step=7)
        say(run, rank, "waiting", change=2)
    run.update(0.0)
    run.update(2 * PATIENCE_S)  # they compute the step
    assert not said_ends(run)
    report(run, {0: 9}, change=2)
    run.update(2 * PATIENCE_S)
    run.update(3 * PATIENCE_S)
    assert said_ends(run) == {1}


def test_a_loss_comes_before_an_entry():
    run = with_a_free_seat()
    run.enter(ready_client(2), 0.0)
    run.update(1.0)
    run.clients[1].closed = True
    run.update(2.0)
    report(run, {0: 9}, change=3)
    run.update(3.0)
    assert sums_of(run.agreed()) == {0: 9}
    assert run.admit_entering() == []
    heard(run)
    run.update(4.0)
    assert heard(run) == {0: [{"entering": [2], "change": 4}]}


def test_who_enters_and_ends_is_forgotten():
    run = with_a_free_seat()
    late = ready_client(2)
    run.enter(late, 0.0)
    late.closed = True
    run.update(1.0)
    assert not any(heard(run).values())
    assert run.enter(client(2), 0.0) == 2


@pytest.mark.parametrize("ready", [False, True])
def test_who_is_not_ready_in_time_loses_its_rank_to_the_next_that_enters_and_is_ready(ready):
    run = with_a_free_seat()
    first, second = ready_client(2) if ready else client(2), client(3)
    run.enter(first, 0.0)
    run.update(1.0)
    assert run.enter(second, PATIENCE_S - 0.1) is None
    assert run.enter(second, PATIENCE_S) == (None if ready else 2)
    assert not first.outbox
    assert run.enter(client(4), 2 * PATIENCE_S - 0.1) is None
    second.inbox.append({"call": "ready"})
    run.update(2 * PATIENCE_S)
    assert list(first.outbox) == (
        [] if ready else [{"end": "another process was ready sooner; start this process again after a loss"}]
    )
    assert not second.outbox


def test_of_slow_processes_one_enters():
    """Two that are never ready in time, and start again when they lose a seat, do not do so for ever."""
    run, half_patience_s = with_a_free_seat(), PATIENCE_S / 2
    seats, starts = {}, {"first": 0, "second": 2}
    for now in range(100):
        for name, began in starts.items():
            if now >= began and name not in seats:
                starts[name], seat = now, client(2)
                if run.enter(seat, now * half_patience_s) == 2:
                    seats[name] = seat
            elif name in seats and now == began + 3:  # it has compiled its loops, and reads its messages
                if any("end" in message for message in seats[name].outbox):
                    del seats[name]
                else:
                    seats[name].inbox.append({"call": "ready"})
        run.update(now * half_patience_s)
        if any(heard(run).values()):
            return
    pytest.fail("none was ever ready while it had the seat")


def test_who_is_ready_and_has_gone_does_not_take_the_rank():
    run = with_a_free_seat()
    gone, slow = client(2), client(3)
    assert [run.enter(gone, 0.0), run.enter(slow, PATIENCE_S)] == [2, 2]
    gone.inbox.append({"call": "ready"})
    gone.closed = True
    assert run.enter(client(4), PATIENCE_S) is None
    slow.inbox.append({"call": "ready"})
    run.update(PATIENCE_S)
    assert heard(run) == {rank: [{"entering": [2], "change": 2}] for rank in (0, 1)}
    assert not slow.outbox


def test_who_is_ready_keeps_its_rank_although_its_message_is_not_handled_yet():
    """The controller may have been busy, and finds the message and the next request at once."""
    run = with_a_free_seat()
    first = client(2)
    run.enter(first, 0.0)
    run.update(1.0)
    first.inbox.append({"call": "ready"})
    assert run.enter(client(3), PATIENCE_S) is None
    run.update(PATIENCE_S)
    assert heard(run) == {rank: [{"entering": [2], "change": 2}] for rank in (0, 1)}


def test_who_enters_is_told_that_the_run_has_ended():
    run = with_a_free_seat()
    late = ready_client(2)
    run.enter(late, 0.0)
    for rank in (0, 1):
        say(run, rank, "leave")
    run.update(1.0)
    assert [list(message) for message in late.outbox] == [["end"]]
    run.update(2.0)
    assert len(late.outbox) == 1


def test_nobody_waits_for_a_rank_that_is_not_ready_to_enter():
    run = made(survives=True)
    for rank in (2, 3):
        run.clients[rank].closed = True
    run.update(0.0)
    report(run, {0: 5, 1: 5}, change=1)
    run.update(0.0)
    run.agreed()
    heard(run)
    slow, quick = client(2), ready_client(3)
    assert [run.enter(slow, 0.0), run.enter(quick, 0.0)] == [2, 3]
    run.update(1.0)
    assert heard(run) == {rank: [{"entering": [3], "change": 2}] for rank in (0, 1)}
    for rank in (0, 1):
        say(run, rank, "step", change=2, step=7)
    run.update(2.0)
    report(run, {0: 9, 1: 9}, change=2)
    run.update(3.0)
    assert run.agreed().keys() == {0, 1}
    assert run.admit_entering() == [3]
    heard(run)
    run.update(4.0)
    assert not any(heard(run).values())
    slow.inbox.append({"call": "ready"})
    run.update(5.0)
    assert heard(run) == {rank: [{"entering": [2], "change": 3}] for rank in (0, 1, 3)}


def test_losses_and_entries_without_end_do_not_add_up():
    run, change = made(survives=True), 0
    for now in range(50):
        run.clients[3].closed = True
        run.update(now)
        report(run, dict.fromkeys(range(3), now), change=change + 1)
        run.update(now)
        assert run.agreed().keys() == {0, 1, 2}
        assert run.enter(ready_client(3), now) == 3
        run.update(now)
        change += 2
        for rank in range(3):
            say(run, rank, "step", change=change, step=now)
        run.update(now)
        report(run, dict.fromkeys(range(3), now), change=change)
        run.update(now)
        assert run.agreed().keys() == {0, 1, 2}
        assert run.admit_entering() == [3]
        heard(run)
    containers = [value for value in vars(run).values() if isinstance(value, (dict, list, set))]
    assert max(map(len, containers)) <= 4


def test_a_seat_that_is_still_to_be_taken_is_not_free():
    run = Members(client(0), 2, survives=True, patience_s=PATIENCE_S)
    assert run.enter(client(1), 0.0) is None
    assert run.join(1, client(1)) == ""


def test_nobody_is_left():
    run = made(survives=True, ranks=2)
    run.clients[0].closed = run.clients[1].closed = True
    assert len(run.update(0.0)) == 2
    assert run.first() is None
    assert run.agreed() is None


@pytest.mark.parametrize(
    ("chunks", "latest"),
    [([5], 5), ([7, 5, 9, 8], 9), ([0xFFFFFFF0, 3, 0xFFFFFFFF], 3), ([2, 0xFFFFFFFE], 2)],
)
def test_the_latest_chunk_id_is_that_after_a_wrap(chunks, latest):
    assert latest_chunk(chunks) == latest


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
_NAMES = st.sampled_from(["change", "sums", "chunk", "silent", "step", "x"])
_MESSAGES = st.dictionaries(_NAMES, _VALUES | st.integers(-2, 3)).flatmap(
    lambda values: st.sampled_from([*MESSAGE_FIELDS, "start", ""]).map(lambda call: {**values, "call": call})
)


_EVENTS = st.tuples(st.integers(0, 3), _MESSAGES | st.sampled_from(["close", "enter"]))


@given(st.booleans(), st.lists(_EVENTS, max_size=20), st.data())
def test_no_message_of_a_rank_harms_the_others(survives, events, data):
    """Whatever ranks say, only those of them are closed that make no progress, and reports are complete."""
    run = made(survives=survives)
    for now, (rank, event) in enumerate(events):
        if rank not in run.clients:
            continue
        if event == "close":
            run.clients[rank].closed = True
        elif event == "enter":
            run.enter(data.draw(st.sampled_from([client, ready_client]))(9), float(now) / 10)
        elif (message := parsed_request(json.dumps(event).encode(), MESSAGE_FIELDS)) is not None:
            run.clients[rank].inbox.append(message)
        if data.draw(st.booleans()):
            run.update(float(now) / 10)
        reports = run.agreed()
        assert reports is None or reports.keys() == run.clients.keys()
        if reports is not None:
            entered = run.admit_entering()
            assert run.clients.keys() == reports.keys() | set(entered)
            assert 0 <= latest_chunk([report.chunk for report in reports.values()]) < 1 << 32


@given(st.binary(max_size=100) | _VALUES.map(lambda value: json.dumps(value).encode()))
def test_other_lines_are_no_messages(line):
    message = parsed_request(line, MESSAGE_FIELDS)
    assert message is None or message["call"] in MESSAGE_FIELDS


def test_a_rank_that_fails_says_why(members, survives):
    """Where the run goes on, an error is none once the rank has reported its sums."""
    say(members, 2, "failed", reason="still waiting for worker 3")
    assert members.update(0.0) == []
    members.clients[2].closed = True
    error = "" if survives else " after an error: still waiting for worker 3"
    assert members.update(0.0) == [f"rank 2: process 102 of 10.0.0.1 was lost{error}"]
    (item,) = lost(2)
    item |= {} if survives else {"reason": "still waiting for worker 3"}
    assert heard(members) == {rank: [{"lost": [item], "change": 1}] for rank in (0, 1, 3)}

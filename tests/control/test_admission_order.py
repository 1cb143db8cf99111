"""The order of a controller's actions, and the state it leaves at the limits of clocks and counters."""

import pytest
from device_state import rows, tables
from finsy.p4entity import P4TableAction, P4TableEntry, P4TableMatch
from test_controller import contribute, stamps

from peelsum.control import SwitchError, admission
from peelsum.control.admission import Placement
from peelsum.control.drivers import driver_of
from peelsum.control.session import Session
from peelsum.control.tables import _SALT_FACTOR, salt
from peelsum.control.v1model import reset_slots
from peelsum.wire import Verdict

#: Limits of the stamps that `stale_slots` leaves alone, relative to the stamp of a slot freed now: half of
#: 2**30 ticks before it, and 2**30 ticks and an hour after it. Such slots are in use or were freed lately.
EARLIEST, LATEST = -(1 << 29), (1 << 30) + (1 << 26)


@pytest.fixture
def writes(monkeypatch):
    """Return the writes in order: tables and groups by name, a job's row by its expected workers."""
    seen = []

    def noted(self, updates, _write=Session.write):
        for update in updates:
            entity = getattr(update, "entity", update)
            table = getattr(entity, "table_id", "group")
            action = getattr(entity, "action", None)
            if table == "jobs" and isinstance(action, P4TableAction):
                table = f"jobs {action.args['expected_mask']}"
            seen.append(table)
        return _write(self, updates)

    monkeypatch.setattr(Session, "write", noted)
    return seen


def test_a_job_s_row_is_written_first_to_close_it_and_last_to_open_it(controller, description, writes):
    for _ in range(2):
        writes.clear()
        controller.admit(description)
        steps = [name for name in writes if name != "group"]
        closed, opened = steps.index("jobs 0"), steps.index("jobs 3")
        assert closed == 0
        assert opened == len(steps) - 1
        assert writes[-1] == "jobs 3"
    writes.clear()
    controller.evict(3)
    assert writes[0] == "jobs 0"
    assert set(writes[1:]) == {"members", "return_paths", "group"}


def test_an_admission_takes_few_requests(controller, description, monkeypatch):
    requests, stub = [], controller.session._stub
    for call in ("Read", "Write"):

        def counted(request, timeout, call=call, send=getattr(stub, call)):  # noqa: B008 - as it is now
            requests.append(call)
            return send(request, timeout=timeout)

        monkeypatch.setattr(stub, call, counted)
    monkeypatch.setattr(Placement, "free_slots", lambda *_: None)
    controller.session.acquire_lease(3)
    controller.admit(description)
    assert requests == ["Write", "Read", "Read", "Write", "Write", "Write"]


def test_a_row_that_refuses_to_close_keeps_the_job_as_it_is(controller, device, description, monkeypatch):
    first = controller.admit(description)
    before = [rows(device, name) for name in ("jobs", "members", "return_paths")]

    def refuse(self, updates):
        raise SwitchError("switch: went away")

    with monkeypatch.context() as patched:
        patched.setattr(Session, "write", refuse)
        patched.setattr(Placement, "_check_ports", lambda *_: None)
        with pytest.raises(SwitchError, match="went away"):
            controller.admit(description)
    assert [rows(device, name) for name in ("jobs", "members", "return_paths")] == before
    assert controller.jobs()[0].generation == first.generation


@pytest.mark.parametrize(
    ("known", "expected"),
    [([100, 7], 101), ([7, 9, 8], 10), ([65535], 0), ([65535, 0], 1), ([65535, 0, 1], 2), ([65535, 1], 0)],
)
def test_the_next_generation_is_after_the_newest_that_any_switch_remembers(known, expected):
    assert admission.next_generation(known, now=1e9) == expected


def test_the_generation_of_a_job_that_no_switch_remembers_comes_from_the_clock():
    for seconds, expected in ((0, 0), (0.24, 0), (0.25, 1), (10, 40), (16384, 0), (16384.5, 2)):
        assert admission.next_generation([], seconds) == expected


def test_putting_a_job_back_frees_what_its_slots_hold(controller, description, device, freed):
    """A switch lost its tables but not its registers: retransmitted packets must not count as duplicates."""
    admitted = controller.admit(description)
    contribute(device, admitted, 0, chunk_id=5, lanes=100)
    contribute(device, admitted, 1, chunk_id=6)
    before = [rows(device, name) for name in ("jobs", "members", "return_paths")]
    controller.session.write([-P4TableEntry("jobs", match=P4TableMatch(job_id=3))])
    freed.clear()
    (plan,) = description.plans()
    admission.restore(Placement(controller.session, plan), admitted.generation, admitted.secret)
    assert [rows(device, name) for name in ("jobs", "members", "return_paths")] == before
    assert len(freed) >= 2
    assert controller.status().slots_in_use == {}
    assert contribute(device, admitted, 0, chunk_id=5, lanes=1) == []
    ((_, up),) = contribute(device, admitted, 1, chunk_id=5, lanes=2)
    assert (up["lanes"] == 3).all()
    assert controller.verdicts()[Verdict.DUPLICATE] == 0


def bridged(mac, port=1):
    return +P4TableEntry(
        "bridge", match=P4TableMatch(dst_mac=mac), action=P4TableAction("forward", port=port)
    )


@pytest.mark.parametrize("count", [1, 255, 256, 257, 513])
def test_writes_of_any_length_arrive_whole(controller, device, count):
    entries = [bridged(mac, mac % 100) for mac in range(1, count + 1)]
    controller.session.write(entries)
    assert rows(device, "bridge") == [((mac,), (mac % 100,)) for mac in range(1, count + 1)]


def test_the_first_update_that_fails_is_named_whichever_request_it_is_in(controller):
    with pytest.raises(SwitchError, match=r"refused writing: update 1 \(table_entry\)"):
        controller.session.write([bridged(mac) for mac in (*range(1, 258), 5)])


def test_slots_are_freed_again_just_when_their_stamps_may_look_live(controller, device, description, freed):
    """Try stamps behind and ahead of that of a slot freed now, at the clock's start, 0."""
    controller.admit(description)
    register = stamps(device)
    around = dict(enumerate((EARLIEST - 1, EARLIEST, EARLIEST + 1, LATEST - 1, LATEST, LATEST + 1), 10))
    around |= {16: 1 << 31, 17: 0, 18: 1 << 30}
    for slot, stamp in around.items():
        register.write(slot, stamp & 0xFFFFFFFF)
    freed.clear()
    controller.admit(description)
    probe = {0}
    assert freed - probe == {10, 15, 16}
    assert all(register.read(slot) == 0 for slot in (10, 15, 16))


def test_every_slot_is_asked_for_once_where_all_answer(controller, device, freed):
    slots = [*range(130), 4095]
    reset_slots(controller.session, [*slots, 3, 3], 32)
    assert freed == set(slots)
    assert controller.verdicts()[Verdict.RESET_DONE] >= len(slots)


@pytest.mark.parametrize(
    ("milliseconds", "ticks"),
    [
        (0, 0),
        (0.1, 2),
        (640, 10_000),
        (68_719_476.7, (1 << 30) - 1),
        ((1 << 30) * 64 / 1000, 1 << 30),
        (float("inf"), 1 << 30),
    ],
)
def test_age_limits_are_rounded_to_ticks_and_at_most_never(controller, device, milliseconds, ticks):
    controller.session.write(driver_of(controller.session).limit_updates(milliseconds, 12))
    assert tables(device)["limits"].default[1] == (ticks,)
    assert tables(device)["congestion"].default[1] == (12,)


def test_no_two_jobs_start_at_the_same_slot():
    starts = [salt(job_id) % 4096 for job_id in range(1, 256)]
    assert len(set(starts)) == 255
    assert _SALT_FACTOR % 2 == 1

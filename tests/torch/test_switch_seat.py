"""The switch port to which a rank connects, by each form of the job's description, and invalid forms."""

import gc
import json
import os
import socket
import threading
import time
from contextlib import closing
from unittest.mock import Mock

import pytest
from patience import PATIENCE_S
from torch.distributed import HashStore

from peelsum.requests import parsed_request
from peelsum.torch import HookConfigError, SwitchAllreduceState, starts, switch_seat
from peelsum.transport.errors import SwitchUnreachableError

ADMISSION = {"job_id": 1, "generation": 1, "workers": 2, "lanes": 32, "timeout_s": 5.0}
#: A seat of worker 1.
SEAT = {"admission": ADMISSION, "worker_id": 1, "switch_host": "h", "switch_port": 5}


@pytest.fixture
def plugged(monkeypatch, held):
    """What `SwitchSummation` would be made with: (worker, address), by source and rank."""

    def made(job, worker_id, address, **options):
        held.append(options["held"])
        return worker_id, address, job.workers, options["wire"]

    monkeypatch.setattr(switch_seat, "SwitchSummation", made)
    monkeypatch.delenv(switch_seat.SEAT, raising=False)
    monkeypatch.delenv(switch_seat.JOB, raising=False)

    def connect_rank(source, rank, store=None, ranks=2):
        return switch_seat.connect_rank(source, rank, ranks, store, None)

    yield connect_rank
    for seat in held:
        seat.close()


@pytest.fixture
def held():
    """What summations close when they are closed."""
    return []


@pytest.fixture
def job(tmp_path):
    """A file of a job, by its contents."""

    def written(text):
        path = tmp_path / "job.json"
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return str(path)

    return written


def test_ranks_take_consecutive_ports(plugged, job):
    source = job(ADMISSION) + "@10.0.0.1:41001"
    assert plugged(source, 0) == (0, ("10.0.0.1", 41001), 2, "udp-port")
    assert plugged(source, 1) == (1, ("10.0.0.1", 41002), 2, "udp-port")


def test_a_file_may_say_where_the_switch_is(plugged, job, monkeypatch):
    monkeypatch.setenv(switch_seat.JOB, job({"admission": ADMISSION, "switch": "h:7", "wire": "ethernet"}))
    assert plugged("", 1) == (1, ("h", 8), 2, "ethernet")


def test_a_list_of_jobs_is_one_of_planes(monkeypatch, job, tmp_path):
    made = []
    monkeypatch.setattr(switch_seat, "SwitchSummation", lambda *args, **options: made.append((args, options)))
    monkeypatch.delenv(switch_seat.SEAT, raising=False)
    source = job(ADMISSION) + "@h:7"
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"admission": ADMISSION | {"job_id": 3}, "switch": ["i:1", "i:9"]}))
    monkeypatch.setenv(switch_seat.JOB, f"{source},{other}")
    switch_seat.connect_rank("", 1, 2, None, None)
    monkeypatch.setenv(switch_seat.SEAT, json.dumps(SEAT | {"more_planes": [SEAT | {"switch_port": 6}]}))
    with pytest.raises(HookConfigError, match="but 3 ranks train"):
        switch_seat.connect_rank("", 1, 3, None, None)
    switch_seat.connect_rank("", 1, 2, None, None)
    found = [
        (args[1:], args[0].job_id, [(config.job_id, at) for config, at in options["more_planes"]])
        for args, options in made
    ]
    assert found == [((1, ("h", 8)), 1, [(3, ("i", 9))]), ((1, ("h", 5)), 1, [(1, ("h", 6))])]
    for _, options in made:
        options["held"].close()


def test_a_plane_of_fewer_workers_is_refused(plugged, job, tmp_path, held):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(ADMISSION | {"workers": 1}))
    with pytest.raises(HookConfigError, match="the job has 1 workers, but 2 ranks train"):
        plugged(f"{job(ADMISSION)}@h:7,{other}@h:9", 0)
    assert held == []


def test_a_seat_in_the_environment_comes_first(plugged, monkeypatch):
    monkeypatch.setenv(switch_seat.SEAT, json.dumps(SEAT))
    monkeypatch.setenv(switch_seat.JOB, "no such file")
    assert plugged("", 0) == (1, ("h", 5), 2, "udp-port")


def test_ranks_that_torchrun_starts_in_one_seat_take_all_seats(plugged, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv(switch_seat.SEAT, json.dumps(SEAT | {"switch": ["h:7", "i:3"]}))
    assert plugged("", 0) == (0, ("h", 7), 2, "udp-port")
    assert plugged("", 1) == (1, ("i", 3), 2, "udp-port")
    monkeypatch.setenv(switch_seat.SEAT, json.dumps(SEAT))
    with pytest.raises(HookConfigError, match="PEELSUM_SEAT is for one worker, but 2 ranks run here"):
        plugged("", 0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert plugged("", 0) == (1, ("h", 5), 2, "udp-port")


def test_ranks_of_racks_are_numbered_by_rack(plugged, job):
    racks = ADMISSION | {"workers": 3, "racks": [2, 1]}
    assert plugged(job(racks) + "@h:7", 2, ranks=3)[0] == 32


@pytest.mark.parametrize(
    ("contents", "rank", "message"),
    [
        (ADMISSION, 0, "has no 'admission'; give a seat, or FILE@HOST:PORT"),
        ({"admission": ADMISSION, "switch": "h"}, 0, "'h' is not HOST:PORT"),
        ({"admission": ADMISSION, "switch": ["h:x"]}, 0, "'h:x' is not HOST:PORT"),
        ({"admission": ADMISSION, "switch": ["h:7"]}, 1, "is not HOST:PORT"),
        ({"admission": ADMISSION}, 1, "has no 'switch_host'; give a seat, or FILE@HOST:PORT"),
        ("[]", 0, "is not a JSON object"),
        ("{", 0, "is not JSON ("),
        ("[" * 100_000, 0, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_said(plugged, job, contents, rank, message):
    with pytest.raises(HookConfigError, match="over: ") as raised:
        plugged(job(contents), rank)
    assert message in str(raised.value)


@pytest.mark.parametrize("ranks", [1, 3])
def test_as_many_ranks_as_workers(plugged, job, held, ranks, monkeypatch):
    """In whatever form the job is given, no rank connects, and all get the same error."""
    hosts = ["10.0.0.1:5", "10.0.0.2:9"]
    said = f"over: the job has 2 workers, but {ranks} ranks train; start 2, or admit a job of {ranks} workers"
    with closing(Controller({"admission": ADMISSION, "switch": hosts})) as controller:
        store = shared()
        sources = [job({"admission": ADMISSION, "switch": hosts}), f"//{controller.address}", ""]
        monkeypatch.setenv(switch_seat.SEAT, json.dumps(SEAT))
        for source in sources:
            for rank in range(ranks):
                with pytest.raises(HookConfigError) as raised:
                    plugged(source, rank, store, ranks)
                assert str(raised.value) == said
        assert controller.ended.wait(PATIENCE_S)
    assert held == []


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_of_another_number_do_not_join_the_run(plugged, monkeypatch, ranks):
    """Rank 0 leaves such a run at once, and the controller would answer others with that instead."""
    answer = json.dumps({"admission": ADMISSION, "switch": "h:5", "run": "secret"})
    lease, store = Mock(return_value=Mock(response=answer)), shared()
    monkeypatch.setattr(switch_seat, "Lease", lease)
    for rank in range(ranks):
        with pytest.raises(HookConfigError, match=f"the job has 2 workers, but {ranks} ranks train"):
            plugged("//h:9", rank, store, ranks)
    assert lease.call_count == 1


def test_a_rank_without_a_lease_cannot_survive_losses(monkeypatch):
    refusal = json.dumps({"error": "rank 1: comes too late"})
    monkeypatch.setattr(switch_seat, "Lease", Mock(return_value=Mock(response=refusal)))
    with pytest.raises(HookConfigError) as raised:
        switch_seat._join_run(("10.0.0.9", 9560), 1, "secret", "continue")
    assert str(raised.value) == (
        "on_lost: rank 1 has no lease at controller 10.0.0.9:9560: rank 1: comes too late"
    )


def test_nothing_said_and_a_file_that_is_not_there(plugged):
    with pytest.raises(HookConfigError) as raised:
        plugged("", 0)
    assert str(raised.value) == (
        "over: neither PEELSUM_SEAT nor PEELSUM_JOB is in the environment; start it by `peelsum exec HOST "
        "-- ...`, set PEELSUM_JOB=//HOST:PORT of `peelsum job serve`, or use over='gloo'"
    )
    for source in ("nowhere@h:7", "job:json"):
        with pytest.raises(HookConfigError, match=rf"^over: {source}: No such file .*; give the job's file$"):
            plugged(source, 0)


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("127.0.0.1:9560", "//127.0.0.1:9560"),
        ("http://h:9560", "//h:9560"),
        ("http://h:9560/", "//h:9560"),
        ("/h:9560", "//h:9560"),
        ("tcp:h:9560", "//h:9560"),
        ("tcp://h:1/x", "//h:1"),
        ("[::1]:9560", "//[::1]:9560"),
        ("tcp://[fe80::1]:9560/job", "//[fe80::1]:9560"),
    ],
)
def test_a_controllers_address_in_another_form_is_told_the_right_one(plugged, given, right, monkeypatch):
    monkeypatch.setenv(switch_seat.JOB, given)
    with pytest.raises(HookConfigError) as raised:
        plugged("", 0)
    said = f"over: {given}: No such file or directory; for a controller there, give {right}"
    assert str(raised.value) == said


def test_a_seat_is_held_once_in_a_process(plugged, job, held, monkeypatch):
    """A second connection to the seat waits a little for the first to leave."""
    monkeypatch.setattr(starts, "_RELEASE_S", 0.0)
    source = job(ADMISSION) + "@h:7"
    plugged(source, 0)
    plugged(source, 1)
    with pytest.raises(
        HookConfigError, match="this process is worker 0 of job 1 at h:7 already; share one state between"
    ):
        plugged(source, 0)
    monkeypatch.setattr(starts, "_RELEASE_S", 60.0)
    leaving, started = threading.Timer(1.0, held[0].close), time.monotonic()
    leaving.start()
    assert plugged(source, 0)[0] == 0
    leaving.join()
    assert time.monotonic() - started < 50.0, "was not told, but waited all of its time"
    monkeypatch.setattr(starts, "_RELEASE_S", 0.0)
    with pytest.raises(HookConfigError, match="this process is worker 1 of job 1 at h:8 already"):
        plugged(source, 1)


def test_a_seat_in_a_cycle_that_nobody_holds_is_free(monkeypatch):
    monkeypatch.setattr(starts, "_RELEASE_S", 0.0)
    gc.disable()
    try:
        cycle = [starts.hold_seat("a seat")]
        cycle[0].__enter__()
        cycle.append(cycle)
        del cycle
        with starts.hold_seat("a seat"):
            pass
    finally:
        gc.enable()


def test_a_start_that_fails_leaves_its_seat(plugged, job, monkeypatch):
    """Even while the error, and with it all that was under way, is held."""
    monkeypatch.setattr(starts, "_RELEASE_S", 0.0)
    source = job(ADMISSION) + "@h:7"

    def unreachable(*_, **__):
        raise SwitchUnreachableError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(switch_seat, "SwitchSummation", unreachable)
        with pytest.raises(SwitchUnreachableError) as raised:
            plugged(source, 0)
    assert plugged(source, 0)[0] == 0
    assert raised.value.__traceback__ is not None


def test_a_controllers_job_is_held_once_in_a_process(plugged, monkeypatch):
    """All ranks get the error; the others would otherwise wait for rank 0."""
    monkeypatch.setattr(starts, "_RELEASE_S", 0.0)
    store = shared()
    with (
        starts.hold_seat("rank 0 of the job of controller h:9"),
        pytest.raises(HookConfigError, match="this process is rank 0 of the job of controller h:9") as raised,
    ):
        plugged("//h:9", 0, store)
    assert "share one state between modules" in str(raised.value)
    with pytest.raises(HookConfigError, match="controller h:9: rank 0: this process is rank 0 of the job"):
        plugged("//h:9", 1, store)


def shared():
    """Return a store, which notes its calls."""
    return Mock(wraps=HashStore())


class Controller:
    """A controller that answers once, as `peelsum job serve` does.

    `process` is the requesting process, `ended` is set when it has left.
    """

    def __init__(self, answer):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.process, self.ended = None, threading.Event()
        self._thread = threading.Thread(target=self._answer, args=[answer])
        self._thread.start()

    def _answer(self, answer):
        link, _ = self._socket.accept()
        with link, link.makefile("rb") as said:
            self.process = parsed_request(said.readline())["process"]
            link.sendall(json.dumps(answer).encode() + b"\n")
            said.read()
            self.ended.set()

    def close(self):
        self._thread.join()
        self._socket.close()


def test_a_controller_is_asked_by_rank_0_for_all(plugged, held):
    """Rank 0 holds on to the connection until it leaves the job."""
    store, switch = shared(), ["10.0.0.1:5", "10.0.0.2:9"]
    with closing(Controller({"admission": ADMISSION, "switch": switch})) as controller:
        source = f"//{controller.address}"
        assert plugged(source, 0, store)[:2] == (0, ("10.0.0.1", 5))
        assert plugged(source, 1, store)[:2] == (1, ("10.0.0.2", 9))
        assert controller.process == os.getpid()
        assert not controller.ended.is_set()
        held[0].close()
        assert controller.ended.wait(PATIENCE_S)


def test_a_controller_has_as_long_as_ranks_wait_for_each_other(plugged, monkeypatch):
    """Its server may have to compile, and the other ranks wait for rank 0 as long."""
    answer = json.dumps({"admission": ADMISSION, "switch": "h:5"})
    lease, store = Mock(return_value=Mock(response=answer)), shared()
    monkeypatch.setattr(switch_seat, "Lease", lease)
    monkeypatch.setenv("PEELSUM_JOIN_S", "900")
    for rank in (0, 1):
        plugged("//h:9", rank, store)
        assert store.wait.call_args.args[1].total_seconds() > 900
    assert lease.call_args.args == (("h", 9), 900.0)


def all_are_told(plugged, source, said):
    """No rank waits for another: each raises the same error."""
    store = shared()
    for rank in (0, 1):
        with pytest.raises(HookConfigError, match=said):
            plugged(source, rank, store)


def test_what_a_controller_refuses_is_told_to_all(plugged):
    with closing(Controller({"error": "lanes: 7 are too few"})) as controller:
        said = r"controller 127.0.0.1:\d+: lanes: 7 are too few"
        all_are_told(plugged, f"//{controller.address}", said)


def test_no_controller_is_told_to_all(plugged):
    all_are_told(plugged, refusing(), "Connection refused; check that")


def test_a_controller_with_tls_is_told_to_ranks_without(plugged, monkeypatch):
    """Such a controller closes the connection without an answer."""
    lease = Mock(return_value=Mock(response=""))
    monkeypatch.setattr(switch_seat, "Lease", lease)
    all_are_told(
        plugged, "//h:9", "rank 0: the controller does not answer without TLS; set PEELSUM_TLS to a folder"
    )
    lease.return_value.close.assert_called_once()


@pytest.mark.parametrize("address", ["here", "::1:9", "h:0", "h:65536", "h:99999"])
def test_every_rank_refuses_an_invalid_address(plugged, address):
    all_are_told(plugged, f"//{address}", f"'{address}' is not HOST:PORT; give .*, up to 65535")


def test_a_host_name_that_is_too_long_is_told_to_all(plugged, monkeypatch):
    """As with TLS, without which no name beyond loopback is looked up."""
    monkeypatch.setattr(switch_seat, "_request_lease", lambda place, **_: socket.create_connection(place))
    all_are_told(plugged, f"//{'a' * 64}:9560", r"rank 0: .*; check the host's name")


def test_ports_of_later_ranks_beyond_the_last_one_are_refused(plugged, job):
    source = job(ADMISSION) + "@h:65535"
    plugged(source, 0)
    with pytest.raises(HookConfigError, match="rank 1 would connect to port 65536 of h; give rank 0 a lower"):
        plugged(source, 1)


def test_ranks_in_different_numbers_of_groups_get_the_same_job(plugged, held):
    """Rank 0 has asked for another group's job before, and for this one's earlier start."""
    alone, everybody = shared(), shared()
    for _ in range(2):
        with pytest.raises(HookConfigError, match="Connection refused"):
            plugged(refusing(), 0, alone, ranks=1)
    for _ in range(2):
        switch = ["10.0.0.1:5", "10.0.0.2:9"]
        with closing(Controller({"admission": ADMISSION, "switch": switch})) as controller:
            for rank in (0, 1):
                plugged(f"//{controller.address}", rank, everybody)
            for seat in held:
                seat.close()
    keys = {call.args[0] for call in everybody.set.call_args_list}
    assert len([key for key in keys if key.startswith("peelsum/job/")]) == 2


def refusing():
    """The address of a controller that is not there."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        return f"//127.0.0.1:{unheard.getsockname()[1]}"


@pytest.mark.parametrize(
    ("given", "local", "ranks", "planes", "own"),
    [
        ("", "0", "2", 1, []),
        ("eth0", "0", "1", 1, ["eth0"]),
        ("eth0,eth1", "1", "2", 1, ["eth1"]),
        ("eth0,eth1", "0", "1", 2, ["eth0", "eth1"]),
        ("a0,b0,a1,b1", "1", "2", 2, ["a1", "b1"]),
    ],
)
def test_each_local_rank_has_its_interfaces(monkeypatch, given, local, ranks, planes, own):
    for name, value in (("LOCAL_RANK", local), ("LOCAL_WORLD_SIZE", ranks), (switch_seat.INTERFACES, given)):
        monkeypatch.setenv(name, value)
    assert switch_seat._local_interfaces(planes) == own


@pytest.mark.parametrize("given", ["eth0", "eth0,eth1,eth2"])
def test_too_few_interfaces_or_too_many(monkeypatch, given):
    for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"), (switch_seat.INTERFACES, given)):
        monkeypatch.setenv(name, value)
    with pytest.raises(
        HookConfigError, match="for 2 ranks of 1 planes here; give 2, those of local rank 0 first"
    ):
        switch_seat._local_interfaces(1)


@pytest.mark.parametrize(
    ("source", "environment", "text"),
    [
        ("", "", "PEELSUM_JOB is not set to the address of a `peelsum job serve`"),
        ("127.0.0.1:9560", "", "'127.0.0.1:9560' is not the address of a `peelsum job serve`"),
        ("", "//h:1,//h:2", "'//h:1,//h:2' is not the address of a `peelsum job serve`"),
    ],
)
def test_a_rank_enters_by_one_controller(monkeypatch, source, environment, text):
    monkeypatch.setenv(switch_seat.JOB, environment)
    with pytest.raises(HookConfigError) as caught:
        switch_seat.connect_to_run(source, None)
    assert str(caught.value) == f"enters: {text}; set PEELSUM_JOB=//HOST:PORT"


def test_a_state_that_cannot_connect_has_one_error(monkeypatch, caplog):
    """The missing gradients, of which an unused state warns, follow from it."""
    monkeypatch.setenv(switch_seat.JOB, "")
    state = SwitchAllreduceState(on_lost="continue", enters=True, shared={})
    with pytest.raises(HookConfigError, match="PEELSUM_JOB is not set"):
        state.connect()
    assert state.unused, "else the hook would not compare the groups after a second attempt"
    state.close()
    del state
    gc.collect()
    assert not caplog.messages

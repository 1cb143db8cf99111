"""`peelsum job serve` starts a job again and again, even if switch, server or connections fail."""

import signal
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
from patience import until
from served_job import ASK_S, Controlling, Switch, described, described_racks
from typer.testing import CliRunner

from peelsum.allreduce import Part
from peelsum.cli.app import app
from peelsum.compress import CompressedSum, StarTopK
from peelsum.control import JobDescription
from peelsum.control.cluster import JobController
from peelsum.control.cluster import runs as runs_module
from peelsum.control.cluster.requests import ConnectedClient
from peelsum.control.cluster.runs import JobRun, JobRuns
from peelsum.control.errors import NotPrimaryError, SwitchError
from peelsum.logs import INTERVAL_S, MOST_RECORDS
from peelsum.processes import Child, ProcessError
from peelsum.tls.identity import tls_reason
from peelsum.topology import TopologyError
from peelsum.transport import SwitchSummation, job_config
from peelsum.wire import PROOF_BYTES, packet_bytes

pytestmark = pytest.mark.usefixtures("forked_children")


def refused(*arguments):
    """Return the command's error with these arguments, after which it ends with status 1 or 2."""
    outcome = CliRunner().invoke(app, ["job", "serve", *arguments])
    assert outcome.exit_code in (1, 2)
    return outcome.output


def test_racks_of_which_one_has_no_address(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(described_racks("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
    said = refused(str(path), "--udp", "h:1")
    said = " ".join(said.replace("│", " ").split())
    assert "--udp: gives 1 addresses, but the job has 3 switches; give --udp once for each" in said


def test_a_job_without_an_address(tmp_path):
    (tmp_path / "job.toml").write_text(described(Mock(p4runtime="127.0.0.1:1"), 2))
    said = " ".join(refused(str(tmp_path / "job.toml")).replace("│", " ").split())
    assert "--udp: is missing; give it once for each of the job's switches, or --ethernet" in said


@pytest.mark.parametrize("name", ["nowhere.invalid", "no..name"])
def test_a_switch_whose_name_is_unknown(tmp_path, name):
    (tmp_path / "job.toml").write_text(described(Mock(p4runtime="127.0.0.1:1"), 2))
    said = " ".join(refused(str(tmp_path / "job.toml"), "--udp", f"{name}:1").replace("│", " ").split())
    assert f"--udp: {name}: " in said
    assert "use a name that this machine can resolve" in said


def test_a_description_that_is_not_there_and_addresses_that_are_none():
    for arguments, reason in (
        (("nowhere.toml", "--udp", "h:1"), "nowhere.toml"),
        (("job.toml", "--udp", "here"), "give the switch as host:port"),
        (("job.toml", "--udp", "h:1", "--listen", "9560"), "give the address to listen at as host:port"),
    ):
        assert reason in refused(*arguments)


@pytest.fixture(scope="module")
def switch():
    with closing(Switch(ports=6)) as made:
        yield made


@pytest.fixture(scope="module")
def controller(switch, tmp_path_factory):
    with closing(Controlling(tmp_path_factory.mktemp("served"), described(switch), switch)) as made:
        yield made


class Workers:
    """Both workers of a run, which sum at the same time."""

    def __init__(self, answer):
        config = job_config(answer["admission"])
        at = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in answer["switch"])]
        self._threads = ThreadPoolExecutor(2)
        places = zip(config.worker_ids, at, strict=True)
        self._summations = [SwitchSummation(config, *place) for place in places]

    def check_sum(self):
        parts = [Part(np.arange(1000, dtype=np.uint32) * np.uint32(k), "add") for k in (3, 4_000_000_000)]
        sums = self._threads.map(lambda one, part: one.sum_words([part])[0], self._summations, parts)
        for result in sums:
            np.testing.assert_array_equal(result, parts[0].words + parts[1].words)

    def check_elected(self):
        """STAR-Topk: in each step another worker's largest values choose what all workers send."""
        gradients = [np.array([9, -8, 1, 2], np.float32), np.array([1, 2, -7, 5], np.float32)]
        options = {"error_feedback": False, "average": False}
        sums = [CompressedSum(one, StarTopK(0.5), **options) for one in self._summations]
        for step, expected in enumerate(([10, -6, 0, 0], [0, 0, -6, 7])):
            results = self._threads.map(lambda one, g, n=step: one.sum({"g": g}, n), sums, gradients)
            assert [result["g"].values.tolist() for result in results] == [expected] * 2

    def close(self):
        list(self._threads.map(SwitchSummation.close, self._summations))
        self._threads.shutdown()


def test_an_address_that_is_taken(switch, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(described(switch))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        said = refused(str(path), "--udp", "127.0.0.1:1", "--listen", place)
    assert f"--listen: {place}: Address already in use; choose another" in said


@pytest.mark.parametrize("job_id", [1, 2])
def test_it_compiles_first_if_no_other_holds_its_job(switch, controller, tmp_path, monkeypatch, job_id):
    monkeypatch.setattr("peelsum.transport.warming.warm_up", Mock(side_effect=TopologyError("compiled")))
    monkeypatch.setattr("peelsum.control.session._RELEASE_S", 0.0)
    (path := tmp_path / "job.toml").write_text(described(switch, job_id=job_id))
    said = refused(str(path), "--udp", f"127.0.0.1:{switch.base}", "--listen", "127.0.0.1:0")
    holder = f"peelsum: job.id: 1: process {controller.child.pid} at 127.0.0.1:"
    assert {1: holder, 2: "peelsum: compiled"}[job_id] in said
    assert "asked for" not in said


def test_strangers_leave_a_run_alone(switch, controller):
    """Port scanners, health checks, other protocols and hellos without the secret leave a run alone."""
    with controller.asked() as answer, closing(Workers(answer)) as workers:
        workers.check_sum()
        for said in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\0\1\2\n"):
            with socket.create_connection(controller.address) as stranger:
                stranger.sendall(said)
        with socket.create_connection(controller.address, ASK_S) as stranger, stranger.makefile() as told:
            stranger.sendall(b"hello?\n")
            assert "this was not a request" in told.read()
        for port in (1, 2, 3):
            with socket.socket(type=socket.SOCK_DGRAM) as stranger:
                stranger.settimeout(ASK_S)
                stranger.connect(("127.0.0.1", switch.base + port))
                stranger.send(b"")
                challenge = stranger.recv(100)
                assert len(challenge) == PROOF_BYTES
                stranger.send(challenge)
                stranger.send(bytes(packet_bytes(32)))
        workers.check_sum()
        assert switch.jobs == [(1, answer["admission"]["generation"])]


@pytest.mark.system
def test_a_start_after_one_that_was_killed(controller):
    """The kernel closes its connection, while other workers of it still wait."""
    with controller.asked() as before:
        old = Workers(before)
        old.check_sum()
    with controller.asked() as answer, closing(Workers(answer)) as workers:
        assert answer["admission"]["generation"] != before["admission"]["generation"]
        workers.check_sum()
    old.close()


def test_a_start_that_fails_says_why_and_the_next_one_works(switch, controller):
    with controller.asked() as answer, closing(Workers(answer)) as workers:
        workers.check_sum()
    switch.stop()
    controller.wait_until_it_says("connecting again")
    with controller.asked() as answer:
        assert answer == {
            "error": f"switch: nothing answers P4Runtime at {switch.p4runtime}; "
            "is `peelsum switch run` running there? (with TLS there, give --tls here)"
        }
    switch.start(ports=1)
    with controller.asked() as answer:
        assert answer["error"].startswith("ports: 2, 3: ")
        assert controller.started == []
    switch.stop()
    switch.start()
    with controller.asked() as answer, closing(Workers(answer)) as workers:
        workers.check_sum()


def test_a_server_that_ends_before_its_job_is_started_again(switch, controller):
    with controller.asked() as answer, closing(Workers(answer)) as workers:
        workers.check_sum()
        (server,) = controller.started
        server.send_signal(signal.SIGKILL)
        workers.check_sum()
        assert switch.jobs == [(1, answer["admission"]["generation"])]
        until(lambda: [one.pid for one in controller.started] not in ([], [server.pid]))


@pytest.mark.system
def test_racks_below_a_spine(tmp_path):
    """Each worker's seat is at its own rack's switch."""
    with ExitStack() as stack:
        spine = stack.enter_context(closing(Switch()))
        joins = [f"3@127.0.0.1:{spine.base + port}" for port in (1, 2)]
        racks = [stack.enter_context(closing(Switch("--join", join))) for join in joins]
        switches = (spine, *racks)
        job = described_racks(*(one.p4runtime for one in switches))
        served = stack.enter_context(closing(Controlling(tmp_path, job, *switches)))
        with served.asked() as answer, closing(Workers(answer)) as workers:
            workers.check_sum()
            workers.check_elected()
            assert answer["switch"] == [f"127.0.0.1:{racks[0].base + 1}", f"127.0.0.1:{racks[1].base + 2}"]
            assert all(one.jobs == [(1, answer["admission"]["generation"])] for one in switches)


def test_its_end_is_that_of_all_it_started(switch, tmp_path):
    served = Controlling(tmp_path, described(switch, job_id=2, first=4), switch)
    with closing(served), served.asked() as answer:
        admitted = (2, answer["admission"]["generation"])
        assert admitted in switch.jobs
        (server,) = served.started
        psutil.Process(served.child.pid).send_signal(signal.SIGTERM)
        while served.child.next_message(30.0) is not None:
            pass
        assert served.child.status == 0
        assert admitted not in switch.jobs
        assert not server.is_running()


def described_with_hosts():
    """A job with spare ports, each of whose hosts has an address."""
    mac = "02:00:00:00:00:{:02x}"
    return JobDescription.model_validate(
        {
            "job": {"id": 1, "workers": 2},
            "switch": {"p4runtime": "h:1", "address": {"mac": mac.format(99), "ip": "10.0.0.99"}},
            "ports": {"workers": [1, 2], "server": 3, "spare": [4, 5, 6]},
            "hosts": {str(n): {"mac": mac.format(n), "ip": f"10.0.0.{n}"} for n in range(1, 7)},
        }
    )


class Jobs:
    """A controller whose admissions do nothing, and which remembers them."""

    def __init__(self):
        self.admitted, self.up = [], True
        self.poll = self.report = self.evict = self.release = Mock()

    def admit_job(self, job, *, is_new):
        self.admitted.append(job)
        return {"job_id": job.job.id, "generation": 1}

    def generation(self, job_id):
        return 1

    def is_up(self, job):
        return self.up


def test_a_server_is_not_started_again_without_its_switch():
    run = JobRun(jobs := Jobs(), described_with_hosts(), [], ethernet=False)
    run._server = Mock(child=Mock(status=-signal.SIGKILL), restart=Mock(return_value="started again"))
    for jobs.up in (False, True):
        run.check()
        assert run._server.restart.called is jobs.up


SURVIVES = {"call": "start", "process": 7, "on_lost": "continue"}


def lose_a_rank(run):
    """Start a run of two ranks, of which one is lost and the other reports its sums; return the other."""
    lost, left = (ConnectedClient(None, "h", 0.0, request=SURVIVES) for _ in range(2))
    run.start(lost)
    assert run.members.join(1, left) == ""
    lost.closed = True
    run.update(0.0)
    left.inbox.append({"call": "completed", "change": 1, "sums": 3, "chunk": 9})
    run.update(0.0)
    return left


def test_a_run_whose_next_server_ends_at_its_start_is_over_and_another_can_start(monkeypatch):
    """The controller remains; the ended server is not looked at again."""
    run = JobRun(jobs := Jobs(), described_with_hosts(), [("h", 100)], ethernet=False)
    jobs.admit_job = Mock(return_value={"generation": 2, "secret": "", "window": 8})
    jobs.evict = Mock(return_value={"waiting": []})
    ended = Mock(running=False, status=-signal.SIGKILL, next_message=Mock(return_value=None))
    ended.exit_report.side_effect = ["server: ended by SIGKILL", ValueError("of closed file")]
    start = Mock(side_effect=[ended, ProcessError("server: ended by SIGKILL"), Mock(status=None)])
    monkeypatch.setattr(JobRun, "_start_server", lambda self, wait=True: start())
    left = lose_a_rank(run)
    assert "could not be admitted (server: ended by SIGKILL)" in left.outbox[-1]["end"]
    run.check()
    assert "run" in run.start(ConnectedClient(None, "h", 0.0, request=SURVIVES))


@pytest.mark.parametrize("on_lost", ["continue", None])
def test_a_run_that_survives_losses_has_a_standby_server(monkeypatch, on_lost):
    """A while after its start; it replaces one that is lost, if it still runs, and ends with the run."""
    run = JobRun(jobs := Jobs(), described_with_hosts(), [("h", 100)], ethernet=False)
    jobs.evict = Mock(return_value={"waiting": []})
    children = [Mock(status=None, running=True) for _ in range(5)]
    child = Mock(side_effect=children[1:])
    child.peelsum = Mock(side_effect=[children[0], Mock(status=None)])
    monkeypatch.setattr(runs_module, "Child", child)
    monkeypatch.setattr(runs_module, "_STANDBY_DELAY_S", 0.0)
    request = {"call": "start", "process": 7} | ({"on_lost": on_lost} if on_lost else {})
    run.start(ConnectedClient(None, "h", 0.0, request=request))
    child.assert_not_called()
    run.check()
    run.check()
    assert child.call_count == (on_lost is not None)
    if on_lost:
        children[0].status = -signal.SIGKILL
        run.check()
        assert run._server.child is children[1]
        children[1].send.assert_called_once()
        children[1].status, children[2].running = -signal.SIGKILL, False
        run.check()
        assert run._server.child not in children
        children[2].stop.assert_called_once()
        run.members.clients.clear()
        run.check()
        children[3].stop.assert_called_once()


def test_a_standby_process_that_cannot_start_ends_no_run(monkeypatch):
    servers = runs_module.ServerStarter()
    child = Mock(side_effect=BlockingIOError("no more processes"))
    child.peelsum = Mock(return_value=(server := Mock()))
    monkeypatch.setattr(runs_module, "Child", child)
    servers.keep_standby(32)
    assert servers.start("server", "run", environment={}) is server
    assert child.call_count == 2, "a standby process, now and after the start"
    server.stop.assert_not_called()


@pytest.mark.parametrize(("failures", "kind"), [(1, SwitchError), (2, SwitchError), (1, NotPrimaryError)])
def test_a_switch_that_ends_while_those_left_are_admitted_is_tried_again(monkeypatch, failures, kind):
    run = JobRun(jobs := Jobs(), described_with_hosts(), [("h", 100)], ethernet=False)
    jobs.evict, jobs.evict_from = Mock(return_value={"waiting": []}), Mock()
    admissions = [{"generation": number, "secret": "", "window": 8} for number in (2, 3)]
    lost = kind("switch: lost the connection to h while writing")
    jobs.admit_job = Mock(side_effect=[admissions[0], *[lost] * failures, admissions[1]])
    server = Mock(running=True, status=None, next_message=Mock(return_value={"generation": 3}))
    monkeypatch.setattr(JobRun, "_start_server", Mock(return_value=server))
    left = lose_a_rank(run)
    message = left.outbox[-1]
    if failures == 1 and kind is SwitchError:
        assert (message["members"], message["admission"]["generation"]) == ([1], 3)
    else:
        assert "could not be admitted (switch: lost the connection to h" in message["end"]


def test_a_server_that_is_started_again_is_not_waited_for(monkeypatch):
    """If it is stopped, it is killed and another is started; the ranks are served meanwhile."""
    run = JobRun(jobs := Jobs(), described_with_hosts(), [("h", 100)], ethernet=False)
    jobs.evict = Mock(return_value={"waiting": []})
    servers, starts = [Mock(status=None)], []
    command = [sys.executable, "-c", "input(); print('{}', flush=True); input()"]

    def start(self, wait=True):
        starts.append(wait)
        servers.append(Child("server", command) if not wait else servers[0])
        return servers[-1]

    monkeypatch.setattr(JobRun, "_start_server", start)
    monkeypatch.setattr(runs_module, "_START_PATIENCE_S", 0.5)
    request = {"call": "start", "process": 7, "on_lost": "continue"}
    run.start(ConnectedClient(None, "h", 0.0, request=request))
    servers[0].status = -signal.SIGKILL
    run.check()
    silent = servers[-1]
    until(lambda: run.check() or servers[-1] is not silent)
    servers[-1].send()
    until(lambda: run.check() or run._restarted_at is None)
    assert starts == [True, False, False]
    run.end()


class Tenant:
    """A lease for a group of two ranks."""

    ranks, closed, name, request = 2, False, "process 7", {"call": "start", "process": 7}


def test_a_group_s_job_has_the_hosts_of_its_ports(monkeypatch):
    monkeypatch.setattr(JobRun, "_start_server", Mock())
    runs = JobRuns(jobs := Jobs(), described_with_hosts(), [("h", 100)], ethernet=False)
    assert runs.respond(Tenant())["switch"] == ["h:105", "h:106"]
    (job,) = jobs.admitted
    assert (job.ports.server, job.ports.workers, set(job.hosts)) == (4, (5, 6), {"4", "5", "6"})


def test_on_a_wire_there_are_no_groups():
    runs = JobRuns(Jobs(), described_with_hosts(), [], ethernet=True)
    assert "further groups need ports that are UDP sockets" in runs.respond(Tenant())["refused"]


def test_a_client_that_is_refused_again_and_again_does_not_fill_the_log():
    events, now = [], 0.0
    controller = JobController(on_event=events.append)
    runs = JobRuns(controller, described_with_hosts(), [], ethernet=True, clock=lambda: now)
    for _ in range(1000):
        assert "refused" in runs.respond(Tenant())
    assert len(events) == MOST_RECORDS
    assert controller.counts()["run"] == 1000
    now = INTERVAL_S
    runs.respond(Tenant())
    assert events[-1].text.endswith(f"(before it, {1000 - MOST_RECORDS} lines were not logged)")


def test_an_end_of_tls_without_a_reason_has_words():
    assert tls_reason(ssl.SSLZeroReturnError()) == "the other end closed the connection"

"""`peelsum controller run` as processes, asked by gRPC and by the command line; fail-over, limits."""

import json
import os
import signal
import socket
import urllib.request
from contextlib import ExitStack

import pytest
from clusters import answering, cluster_text, have, job_text
from command_line import peelsum
from patience import PATIENCE_S

from peelsum.control import ControlError
from peelsum.control.cluster import Cluster, ControllerClient, Store
from peelsum.control.cluster.cluster import parse_cluster
from peelsum.processes import Child
from peelsum.requests import MAX_REQUEST_BYTES

pytestmark = pytest.mark.usefixtures("forked_children")


class Running:
    """A controller process of a description. Its events are read by `until`."""

    def __init__(self, folder, *options, listen="127.0.0.1:0"):
        config = str(folder / "cluster.toml")
        words = ("controller", "run", "--config", config, "--listen", listen, *options, "--json", "--child")
        self.child = Child.peelsum("controller", *words)
        self.said = self.child.ready()
        self.address = self.said["listen"]

    def until(self, kind):
        """Read events until one of this kind; return its text."""
        while (event := self.child.next_message(PATIENCE_S))["kind"] != kind:
            pass
        return event["text"]

    def until_up(self):
        """Wait until it is the primary and has its two switches."""
        for _ in range(2):
            self.until("regained")

    def kill(self):
        os.kill(self.child.pid, signal.SIGKILL)
        self.child.stop()


@pytest.fixture
def folder(tmp_path, switches):
    (tmp_path / "cluster.toml").write_text(cluster_text([switch.address for switch in switches]))
    return tmp_path


@pytest.fixture
def start(folder):
    """Return a function that starts a controller process."""
    with ExitStack() as stack:

        def started(*options, **more):
            running = Running(folder, *options, **more)
            stack.callback(running.child.stop)
            return running

        yield started


def test_the_command_line_asks_it(start, folder, switches):
    running = start()
    running.until("primary")
    at = ("--controller", running.address)
    job, text = folder / "3.toml", job_text(3, switches[0].address)
    job.write_text(text)
    running.until_up()
    said = peelsum("job", "admit", str(job), *at, "--json")
    assert said.returncode == 0, said.stderr
    admission = json.loads(said.stdout)
    assert admission["job_id"] == 3
    assert have(switches, {3: (text, admission["generation"])})
    assert "generation = " in peelsum("job", "admit", str(job), *at).stdout
    assert "admitted" in peelsum("status", *at).stdout
    assert peelsum("job", "evict", "3", *at).returncode == 0
    assert have(switches, {})
    assert "no jobs" in peelsum("status", *at).stdout
    gone = peelsum("job", "evict", "3", *at)
    assert (gone.returncode, gone.stderr) == (2, "peelsum: job: 3: is not admitted; admitted: none\n")
    wrong = folder / "wrong.toml"
    wrong.write_text(text.replace("window", "windw"))
    said = peelsum("job", "admit", str(wrong), *at).stderr
    assert said.startswith(f"peelsum: {wrong}: job.windw: is not a field of a job description; call it")


@pytest.mark.system
def test_status_and_doctor_compare_desired_with_actual(start, folder, switches):
    """The second controller is the backup; then a switch vanishes, and its job is desired but not there."""
    running, text = start(), job_text(3, switches[0].address)
    running.until("primary")
    running.until_up()
    backup = start()
    backup.until("backup")
    at = ("--controller", running.address, "--controller", backup.address)
    job = folder / "3.toml"
    job.write_text(text)
    generation = json.loads(peelsum("job", "admit", str(job), *at, "--json").stdout)["generation"]
    wanted = {"job_id": 3, "desired": generation, "actual": generation, "state": "admitted", "agrees": True}
    said = json.loads(peelsum("status", *at, "--json").stdout)
    assert (said["primary"], said["epoch"]) == (running.address, 1)
    assert [(one["state"], one["lanes"], one["trouble"]) for one in said["switches"]] == [("up", 32, "")] * 2
    assert said["jobs"] == [wanted | {"p4runtime": switches[0].address, "device_id": 1}]
    shown = peelsum("status", *at).stdout
    assert f"{running.address}: primary, epoch 1" in shown
    found = findings(at)
    assert found[f"controller {running.address}"] == ("primary, epoch 1", "ok")
    assert found[f"controller {backup.address}"][1] == "note"
    assert found[f"job 3 on {switches[0].address}"] == (f"generation {generation}", "ok")
    switches[0].stop()
    try:
        found = findings(at)
        assert found[f"job 3 on {switches[0].address}"] == ("not admitted", "failed")
        assert found[f"switch {switches[0].address}"][1] == "failed"
        (gone,) = json.loads(peelsum("status", *at, "--json").stdout)["jobs"]
        assert (gone["actual"], gone["agrees"]) == (None, False)
        assert "differs" in peelsum("status", *at).stdout
    finally:
        switches[0].start()
    backup.child.stop()
    running.child.stop()
    assert findings(at)["cluster"] == ("no primary answers", "failed")


def findings(at):
    """Return what `peelsum doctor` found and its state, by what it looked at."""
    said = json.loads(peelsum("doctor", *at, "--json").stdout)
    return {one["subject"]: (one["result"], one["state"]) for one in said["findings"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("job", "evict", "3", "--controller", "9564"), "--controller: 9564: give the controller as"),
        (("job", "evict", "3", "--token", "t"), "--token: t: applies to --controller only; give that too"),
        (("job", "admit", "j", "--hold", "--controller", "h:1"), "--hold: a controller holds the job itself"),
        (("job", "admit", "no.toml", "--controller", "h:1"), "no.toml: No such file or directory; give the"),
        (
            ("job", "evict", "3", "--controller", "10.0.0.1:1"),
            "controller: 10.0.0.1 is beyond loopback, where only TLS is allowed; ",
        ),
        (
            ("job", "evict", "3", "--controller", "127.0.0.1:1"),
            "controller: nothing answers at 127.0.0.1:1; is",
        ),
        (
            ("controller", "run", "--config", "no.toml"),
            "no.toml: No such file or directory; give the path of a cluster",
        ),
    ],
)
def test_errors_are_one_line(words, message, monkeypatch):
    monkeypatch.setattr("peelsum.control.cluster.client._CONNECT_S", 0.2)
    done = peelsum(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"peelsum: {message}")
    assert done.stderr.count("\n") == 1


def test_errors_at_the_start_are_one_line(folder):
    config = str(folder / "cluster.toml")
    beyond = peelsum("controller", "run", "--config", config, "--listen", "10.0.0.1:1")
    assert "--listen: 10.0.0.1 is beyond loopback, where only TLS is allowed" in beyond.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        done = peelsum("controller", "run", "--config", config, "--listen", place)
    assert done.stderr == f"peelsum: --listen: {place}: Address already in use; choose another\n"


def test_a_killed_controller_goes_on_where_it_was_and_its_backup_sooner(start, switches):
    """SIGKILL of the primary; the backup takes over; the next to start is the backup's backup."""
    first = start()
    first.until("primary")
    second = start()
    assert second.until("backup") == f"controller: is a backup; the primary is at {first.address}"
    client = ControllerClient([first.address, second.address])
    first.until_up()
    text = job_text(3, switches[0].address)
    jobs = {3: (text, client.admit(text)["generation"])}
    first.kill()
    other = job_text(4, switches[1].address)
    second.until_up()
    jobs[4] = (other, client.admit(other)["generation"])
    assert have(switches, jobs)
    second.kill()
    third = start()
    third.until_up()
    assert have(switches, jobs)
    client = ControllerClient([third.address])
    assert [job["job_id"] for job in client.list()["jobs"]] == [3, 4]
    for job_id in (3, 4):
        client.evict(job_id)
    assert have(switches, {})


@pytest.fixture
def cluster(tmp_path, switches):
    """A controller in this process that is not polled."""
    described = parse_cluster(cluster_text([switch.address for switch in switches]))
    with Store(tmp_path / "state") as store:
        yield Cluster(described, store)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"job_id": "3"}, "controller: takes requests of .*; this was not a request"),
        ({"job_id": 9223372036854775808}, "9223372036854775808: is not a job's number; use 1 to 255"),
        ({"job_id": 3, "token": "\ud800"}, "token: is not Unicode text; make one"),
        ({"job_id": 3}, "job: 3: is not admitted; admitted: none"),
    ],
)
def test_a_request_that_is_not_granted_gets_the_reason(cluster, values, said):
    cluster._epoch = 1
    with answering(cluster) as address, pytest.raises(ControlError, match=said):
        ControllerClient([address]).evict(**values)


def test_an_error_about_a_file_whose_name_is_not_utf_8(cluster):
    cluster._epoch = 1
    with answering(cluster) as address, pytest.raises(ControlError, match="is not TOML: "):
        ControllerClient([address]).admit("x", "\udcff.toml")


def test_a_request_that_is_too_long(cluster):
    with pytest.raises(ControlError, match="a request has at most 1,048,576 bytes; shorten the description"):
        ControllerClient(["127.0.0.1:1"]).admit("#" * MAX_REQUEST_BYTES)


def test_metrics_are_those_of_the_list(start, switches):
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    running = start("--metrics", "0")
    running.until_up()
    client = ControllerClient([running.address])
    client.admit(job_text(3, switches[0].address))
    with urllib.request.urlopen(running.said["metrics"], timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    counts = ("epoch", "jobs", 'events_total{kind="admitted"}')
    for line in (
        *(f"peelsum_cluster_{one} 1.0" for one in counts),
        'peelsum_cluster_switches{state="up"} 2.0',
    ):
        assert line in lines
    client.evict(3)


def test_it_ends_at_sigterm_and_leaves_no_file_but_the_state(start, folder):
    running = start()
    running.until("primary")
    running.child.stop()
    assert running.child.status == 0
    assert sorted(path.name for path in folder.iterdir()) == ["cluster.sqlite", "cluster.toml"]

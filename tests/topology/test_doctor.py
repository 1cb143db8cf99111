"""`peelsum doctor`: what it finds here, what it says of what is missing, and of a job's switches."""

import errno
import json
import os
import socket
from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_NOFILE

import pytest
from command_line import peelsum
from patience import PATIENCE_S
from primary import Primary

from peelsum.control.description import parse_description
from peelsum.pipelines import pipeline
from peelsum.topology import doctor

JOB = """
[job]
id = 7
workers = 2
[switch]
p4runtime = "{}"
pipeline_lanes = {}
[ports]
workers = [1, 2]
server = 3
"""


def found(findings):
    return {one.subject: one for one in findings}


def test_this_machine_has_what_is_needed():
    """The tests run here, so nothing that is needed is missing; offloads are tried."""
    seen = found(doctor.examine())
    assert not [one for one in seen.values() if one.state == "failed"]
    assert seen["numpy"].state == "ok"
    assert {"UDP_SEGMENT on loopback", "UDP_GRO on loopback", "socket buffers", "clock"} <= seen.keys()
    for one in seen.values():
        assert bool(one.remedy) == (one.state != "ok"), one
        assert "\n" not in one.remedy


def test_what_is_missing_is_named_with_a_remedy(monkeypatch):
    def missing(name):
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    monkeypatch.setattr(doctor, "_UDP_SEGMENT", 250)
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setenv("PATH", "")
    seen = found(doctor.examine(window=1 << 30))
    assert (seen["numpy"].state, seen["numpy"].remedy) == ("failed", "pip install 'peelsum[cli]'")
    assert (seen["cryptography"].state, seen["cryptography"].remedy) == ("note", "pip install 'peelsum[ops]'")
    assert seen["UDP_SEGMENT on loopback"].result == "Protocol not available"
    assert "Linux 5.0" in seen["UDP_SEGMENT on loopback"].remedy
    assert "net.core.rmem_max=" in seen["socket buffers"].remedy
    assert seen["processor cores"].state == seen["ip"].state == "note"


def limited(monkeypatch, kind, limit):
    """Give this process a limit, as far as `doctor` sees."""

    def limits(asked):
        return (limit, limit) if asked == kind else (RLIM_INFINITY,) * 2

    monkeypatch.setattr(doctor.resource, "getrlimit", limits)


def test_too_small_limits_are_found(monkeypatch):
    limited(monkeypatch, RLIMIT_NOFILE, 12)
    seen = found(doctor.examine())
    assert (seen["file descriptors"].state, seen["file descriptors"].result) == ("failed", "12")
    assert seen["file descriptors"].remedy.startswith("ulimit -n ")
    limited(monkeypatch, RLIMIT_AS, 700 << 20)
    memory = doctor._memory()
    assert (memory.state, memory.result) == ("failed", "700 MB, limit of the process, ulimit -v")


def test_loopback_that_is_down_is_found(monkeypatch):
    def unreachable(_):
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(doctor, "_receive", unreachable)
    seen = found(doctor.examine())
    assert (seen["loopback"].state, seen["loopback"].result) == ("failed", "Network is unreachable")
    assert seen["loopback"].remedy == "as root: ip link set lo up"
    assert "UDP_GRO on loopback" not in seen


def test_a_cache_folder_that_cannot_be_used_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/self/nothing")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    finding = doctor._compiled_code()
    assert finding.state == "note"
    assert finding.result.startswith(f"{tmp_path}/peelsum/compiled, ")
    assert finding.result.endswith("; /proc/self/nothing/peelsum: No such file or directory")
    assert finding.remedy.startswith("set NUMBA_CACHE_DIR to ")
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert doctor._compiled_code().state == "ok"


def test_a_port_in_use_is_found(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert doctor._port(port, "me").result == "address already in use"
    assert doctor._port(port, "me").result == "free"


@pytest.fixture
def switch(monkeypatch, server):
    monkeypatch.setattr(doctor, "_ANSWER_S", PATIENCE_S)
    return server.address


@pytest.fixture
def asked(tmp_path):
    """Return a function that runs `peelsum doctor job.toml --json`; it returns status and findings."""

    def ask(text):
        path = tmp_path / "job.toml"
        path.write_text(text)
        done = peelsum("doctor", str(path), "--json")
        findings = {one["subject"]: one for one in json.loads(done.stdout)["findings"]}
        of_switches = {what.partition(": ")[2]: one for what, one in findings.items() if "switch" in what}
        return done.returncode, of_switches

    return ask


def test_the_switches_of_a_job(switch, asked, monkeypatch):
    monkeypatch.setattr("peelsum.control.admission.Placement.free_slots", lambda *_: None)
    text = JOB.format(switch, 32)
    status, seen = asked(text)
    assert status == 1
    assert seen["pipeline"]["result"] == "0 lanes"
    files = pipeline(32)
    with Primary(switch) as controller:
        controller.load_pipeline(files.json_path, files.p4info_path)
        status, seen = asked(text)
        assert (status, seen["job 7"]["state"], seen["pipeline"]["state"]) == (1, "failed", "ok")
        assert seen["job 7"]["remedy"].startswith("run: peelsum job admit")
        controller.admit(parse_description(text))
        before = controller.status()
        status, seen = asked(text)
        assert controller.status() == before, "nothing is disturbed"
    assert status == 0
    assert seen["job 7"]["result"].endswith("ports 1, 2, server at 3")
    assert seen["refused packets"]["result"] == "none"


def test_a_switch_that_is_not_there(asked, monkeypatch):
    monkeypatch.setattr(doctor, "_ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    status, seen = asked(JOB.format(address, 32))
    assert status == 1
    assert f"nothing answers P4Runtime at {address}" in next(iter(seen.values()))["result"]


def test_for_people_it_is_a_table_with_what_to_do(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    done = peelsum("doctor")
    assert done.returncode == 0
    assert "nft: only tests of firewalls need it: apt-get install nftables" in done.stdout
    assert done.stdout.endswith("nothing that is needed is missing\n")


@pytest.mark.parametrize(
    ("method", "why", "state", "remedy"),
    [
        ("xdp", "native", "ok", ""),
        ("xdp", "generic", "note", "its driver has no XDP, so the kernel copies frames once more"),
        ("packet", "it has several queues", "note", "AF_XDP failed: it has several queues"),
    ],
)
def test_how_frames_reach_an_interface(monkeypatch, method, why, state, remedy):
    monkeypatch.setattr(doctor, "best_port_method", lambda _: (method, why))
    seen = next(doctor.examine_interface("eth1"))
    assert (seen.subject, seen.state, seen.remedy) == ("interface eth1", state, remedy)


def test_settings_of_an_interface(monkeypatch, tmp_path):
    """Those of a network card with two queues, whose interrupts go to two cores."""
    monkeypatch.setattr(doctor, "best_port_method", lambda _: ("packet", "it has several queues"))
    about = tmp_path / "sys/class/net/eth1"
    for queue in ("rx-0", "rx-1", "tx-0"):
        (about / "queues" / queue).mkdir(parents=True)
    (about / "operstate").write_text("up\n")
    (about / "speed").write_text("10000\n")
    for number, core in ((40, 3), (41, 5)):
        (about / "device/msi_irqs" / str(number)).mkdir(parents=True)
        (tmp_path / "proc/irq" / str(number)).mkdir(parents=True)
        (tmp_path / "proc/irq" / str(number) / "effective_affinity_list").write_text(f"{core}\n")
    monkeypatch.setattr(doctor, "mtu_of", lambda _: 9000)

    def here(*parts):
        return tmp_path.joinpath(*(part.lstrip("/") for part in parts))

    monkeypatch.setattr(doctor, "Path", here)
    seen = {one.subject: (one.result, one.state) for one in doctor.examine_interface("eth1")}
    assert seen == {
        "interface eth1": ("AF_PACKET", "note"),
        "eth1: MTU": ("9000", "ok"),
        "eth1: link": ("up, 10000 Mbit/s", "ok"),
        "eth1: queues": ("2", "note"),
        "eth1: interrupts": ("on 3, 5", "note"),
    }


def test_an_interface_that_cannot_be_a_port_fails():
    done = peelsum("doctor", "--interface", "nowhere", "--json")
    (seen,) = (one for one in json.loads(done.stdout)["findings"] if one["subject"] == "interface nowhere")
    assert done.returncode == 1
    assert (seen["state"], seen["expected"]) == ("failed", "AF_XDP or AF_PACKET")
    assert seen["remedy"]

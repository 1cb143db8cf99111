"""Networks of processes: exact sums over all links and switches, slow and lossy links, cleaning up."""

import contextlib
import json
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import networks
import numpy as np
import pytest
from command_line import peelsum
from networks import (
    PAIR,
    PEELSUM,
    ROOT,
    exec_in,
    needs,
    needs_namespaces,
    needs_nftables,
    own_folder,
    said,
    summed_at,
    up,
)
from patience import PATIENCE_S, until

from peelsum.topology import TopologyError, description
from peelsum.topology.namespaces import enter_own_namespace, inside
from peelsum.topology.network import UdpNetwork, VethNetwork
from peelsum.topology.records import MARKER, Record, files_of

__all__ = ["own_folder"]

KINDS = [("udp", "softswitch"), ("veth", "softswitch"), ("veth", "bmv2")]


pytestmark = pytest.mark.usefixtures("own_folder")


def described(tmp_path, **parts):
    path = tmp_path / "pair.json"
    path.write_text(json.dumps({**PAIR, **parts}))
    return str(path)


def members(network):
    """The names of the processes that a network has."""
    found = set()
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdecimal() and f"{MARKER}={network}".encode() in (path / "environ").read_bytes():
                found.add((path / "comm").read_text().strip())
    return found


def await_members(network, expected):
    """The processes that a network has, once they are those expected or 20 seconds are over."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := members(network)) != expected and time.monotonic() < deadline:
        select.select([], [], [], 0.05)
    return found


@pytest.mark.parametrize(
    ("links", "switch"),
    [kind if kind[0] == "udp" else pytest.param(*kind, marks=pytest.mark.system) for kind in KINDS],
)
def test_workers_at_hosts_get_exact_sums_and_nothing_is_left(tmp_path, links, switch):
    needs(links, switch)
    with up(described(tmp_path), links, switch) as process:
        network = Record.read()
        assert summed_at("h1", "h2") == ["worker 0: exact", "worker 1: exact"]
        subprocess.run([*PEELSUM, "down"], check=True)
        assert process.wait(PATIENCE_S) == 0, process.stderr.read()
    assert members(network.network) == set()
    assert Record.read() is None


@pytest.mark.system
@pytest.mark.parametrize("lanes", [512, 2048])
@pytest.mark.parametrize(("links", "loss"), [("udp", 0.01), ("veth", 0.0)])
def test_sums_of_packets_in_jumbo_frames_are_exact(tmp_path, links, loss, lanes):
    needs(links, "softswitch")
    ends = [[{"ends": link, "loss": loss} for link in PAIR["links"]]] if loss else [PAIR["links"]]
    with up(described(tmp_path, links=ends[0], job={**PAIR["job"], "lanes": lanes}), links):
        assert summed_at("h1", "h2") == ["worker 0: exact", "worker 1: exact"]


@pytest.mark.system
def test_a_part_that_dies_ends_the_network_and_is_named(tmp_path):
    with up(described(tmp_path), "udp") as network:
        network.kill_part("s1")
        assert network.wait(PATIENCE_S) == 2
        *_, last = network.stderr.read().decode().splitlines()  # after lines about the start
        assert last == "peelsum: s1: ended by SIGKILL; with --restart it would have been started again"
    assert Record.read() is None


@pytest.mark.system
def test_parts_joined_by_udp_find_each_other_again_after_a_restart(tmp_path):
    network = description.two_racks().model_dump(mode="json", exclude_unset=True)
    network["job"]["timeout_s"] = PATIENCE_S  # also for hosts that start while this machine is busy
    (path := tmp_path / "two_racks.json").write_text(json.dumps(network))
    worker = [sys.executable, str(ROOT / "tests/support/scenario_worker.py"), "1", "8", "20"]
    with up(str(path), "udp", "softswitch", "--restart") as network:
        workers = [exec_in(f"h{n}", *worker, "4" if n == 1 else "0") for n in range(1, 5)]
        assert workers[0].stdout.readline() == "before 4\n"
        for part, number in (("s1", signal.SIGKILL), ("s3", signal.SIGKILL), ("server", signal.SIGTERM)):
            network.kill_part(part, number)
            while (news := network.hear()["news"]).startswith(("switch: ", "job: ")):
                pass  # what the controller tells may come before and after
            assert news.startswith(f"{part}: ended by {number.name}")
            assert news.endswith("; started again")
        workers[0].stdin.write("\n")
        assert [said(one) for one in workers] == ["exact"] * 4


@pytest.mark.system
def test_readmission_needs_a_job(tmp_path):
    def refusal():
        return peelsum("readmit").stderr

    assert refusal() == "peelsum: readmit: no network is up; start one with `peelsum up`\n"
    with up(described(tmp_path, job=None), "udp"):
        assert refusal() == "peelsum: readmit: the network has no job; add one to its description\n"


@pytest.mark.system
@needs_namespaces
def test_hosts_have_their_addresses_and_a_namespace_each(tmp_path):
    command = "echo $PEELSUM_NETWORK > {}/greeting"
    hosts = {"h1": {"ip": "10.7.0.1/16", "commands": [command.format(tmp_path)]}, "h2": {}, "h3": {}}
    with up(described(tmp_path, hosts=hosts, job=None), "veth"):
        seen = said(exec_in("h1", "ip", "-brief", "address", "show", "eth0"))
        assert seen.split()[2:] == ["10.7.0.1/16"]
        neighbours = said(exec_in("h2", "ip", "neighbour")).splitlines()
        assert sorted(line.split()[0:5:2] for line in neighbours) == [
            ["10.0.0.254", "eth0", "02:00:00:00:ff:fe"],
            ["10.0.0.3", "eth0", "02:00:00:00:00:03"],
            ["10.7.0.1", "eth0", "02:00:00:00:00:01"],
        ]
        record = Record.read()
        assert (tmp_path / "greeting").read_text().strip() == record.network


@pytest.mark.system
@pytest.mark.parametrize("switch", ["softswitch", "bmv2"])
def test_a_killed_up_leaves_only_what_the_user_started_and_down_ends_that(tmp_path, switch):
    needs("veth", switch)
    with up(described(tmp_path, job=None), "veth", switch) as process:
        network = Record.read()
        assert "sleep" in members(network.network)
        user = exec_in("h1", "tail", "-f", "/dev/null")
        assert "tail" in await_members(network.network, {"sleep", "tail", *members(network.network)})
        process.kill()
        process.wait()
        assert await_members(network.network, {"tail"}) == {"tail"}
        refused = exec_in("h1", "true")
        assert "no network is up; start one with `peelsum up`" in refused.communicate()[1]
        subprocess.run([*PEELSUM, "down"], check=True)
        user.communicate()
    assert members(network.network) == set()
    assert Record.read() is None


@pytest.mark.system
def test_the_next_up_ends_what_a_killed_one_left(tmp_path):
    with up(described(tmp_path), "udp") as process:
        first = Record.read()
        assert files_of(first.network).exists()
        user = exec_in("h1", "sleep", "1000")
        assert await_members(first.network, members(first.network) | {"sleep"}) >= {"sleep"}
        process.kill()
        process.wait()
        with up(described(tmp_path, job=None), "udp"):
            assert user.wait(PATIENCE_S) == -signal.SIGTERM
            assert not files_of(first.network).exists()
            assert members(first.network) == set()
        user.communicate()


@pytest.mark.system
def test_ctrl_c_while_it_starts_leaves_nothing(tmp_path):
    command = [*PEELSUM, "up", described(tmp_path), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    record = until(Record.read)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE_S)[1] == ""
    assert members(record.network) == set()
    assert Record.read() is None


@pytest.mark.system
def test_exec_names_what_is_not_there(tmp_path):
    with up(described(tmp_path, job=None), "udp"):
        for command, message in (
            (("h9", "true"), "exec: h9: is not a host of the network; use one of h1, h2, h3, s1"),
            (("h1", "no-such-command"), "exec: no-such-command: No such file or directory; give a command"),
        ):
            process = exec_in(*command)
            assert process.communicate()[1] == f"peelsum: {message}\n"
            assert process.returncode == 2


def test_down_without_a_network_succeeds():
    done = peelsum("down")
    assert (done.returncode, done.stdout) == (0, "no network is up\n")


def test_losses_that_differ_are_refused_over_udp():
    links = [{"ends": ["h1", "s1-p1"], "loss": 0.1}, *PAIR["links"][1:]]
    topology = description.parse(json.dumps({**PAIR, "links": links}), "pair.json")
    message = r"loss: links of s1 have \[0.0, 0.1\]: over UDP"
    with pytest.raises(TopologyError, match=message), UdpNetwork(topology):
        pass


def alone(scene):
    return dict(networks.alone(__file__, scene))


def laid(link):
    """Hosts 1 and 2 at wires, the first as described; what arrives at the switch's end goes nowhere."""
    links = [{"ends": ["h1", "s1-p1"], **link}, ["h2", "s1-p2"]]
    hosts = {"h1": {}, "h2": {}}
    described = {"hosts": hosts, "switches": {"s1": {}}, "links": links}
    return VethNetwork(description.parse(json.dumps(described), "a.json"))


#: Sends datagrams of 1,000 bytes to the switch, in bursts of 50 that the kernel cuts up, a while or so many.
SENDER = """
import sys, time
from peelsum.wire.datagrams import BatchSocket
import numpy as np
sock = BatchSocket.bind(("0.0.0.0", 0), 1000)
sock.connect(("10.0.0.254", 9))
count, ends_at = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
burst = np.zeros((50, 1000), np.uint8)
while count > 0 and time.monotonic() < ends_at:
    count -= sock.send(burst)
"""


def crossed(link, count, seconds):
    """How many datagrams from host 1 reach the switch; seconds from first to last, and from the start."""
    frames = np.zeros((4096, 1042), np.uint8)
    with laid(link) as network:
        tap = networks.RawInterface("s1-p1")
        holder = network.places["h1"].namespace_of
        command = inside(holder.pid, sys.executable, "-c", SENDER, str(count), str(seconds))
        started = time.perf_counter()
        sender = subprocess.Popen(command)
        got, times = 0, []
        while select.select([tap], [], [], 0.5)[0] or sender.poll() is None:
            if new := tap.receive_into(frames):
                got += new
                times.append(time.perf_counter())
        assert sender.wait() == 0
        return {"got": got, "seconds": times[-1] - times[0], "at_most": times[-1] - started}


def interfaces():
    return {"names": sorted(path.name for path in Path("/proc/sys/net/ipv4/neigh").iterdir())}


def lossy():
    return crossed({"loss": 0.1}, 4000, 30)


def slow():
    return crossed({"rate_mbit": 20}, 1 << 30, 1)


def late():
    try:
        with laid({"latency_ms": 5}):
            return {"refused": ""}
    except TopologyError as refusal:
        return {"refused": str(refusal)}


@needs_namespaces
def test_a_namespace_starts_with_nothing_but_lo():
    assert alone("interfaces") == {"names": ["lo"]}


def test_a_missing_ip_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TopologyError, match="ip: not found on PATH; install iproute2"):
        enter_own_namespace()


@needs_namespaces
@needs_nftables
def test_a_lossy_link_loses_its_share_packet_by_packet():
    # Binomial: of 4,000 some 400 are lost, with a standard deviation of 19; 134 if it lost bursts of 50.
    assert 3500 <= alone("lossy")["got"] <= 3700


@pytest.mark.system
@needs_namespaces
def test_a_slow_link_takes_its_time():
    outcome = alone("slow")
    # A busy machine sends less, and begins to listen late, when more than a second's worth may be waiting.
    bits = outcome["got"] * 1042 * 8
    assert bits / outcome["seconds"] > 4e6
    assert bits / outcome["at_most"] <= 22e6


@needs_namespaces
def test_latency_without_netem_is_refused_with_the_reason():
    refused = alone("late")["refused"]
    if not refused:
        pytest.skip("this kernel has netem")
    assert refused == (
        "link s1-p1: latency 5 ms: refused: Error: Specified qdisc kind is unknown; "
        "load the kernel's module sch_netem, or use --links udp"
    )


if __name__ == "__main__":
    networks.main(globals())

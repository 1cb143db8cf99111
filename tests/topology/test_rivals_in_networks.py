"""Rivals' programs and hosts in networks of processes, on the softswitch and on BMv2, with lost packets.

Sums are compared with Python's integers and fractions.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import networks
import numpy as np
import pytest
from networks import own_folder
from patience import PATIENCE_S
from rival_frames import THC_LEVELS

from benchmarks.rivals import real_time
from benchmarks.rivals.slot_protocols import PROGRAMS, PROTOCOLS, THC
from peelsum.control.errors import SwitchError
from peelsum.control.session import Session, lanes_and_slots
from peelsum.control.v1model import V1Model
from peelsum.processes.user_errors import ProcessError
from peelsum.topology import TopologyError, description, programs
from peelsum.topology.network import UdpNetwork

__all__ = ["own_folder"]

WORKERS, LANES, ELEMENTS = 3, 16, 7_777
FLOATS = ("switchml_floats", "thc")
RIVALS = (*PROTOCOLS, *FLOATS)
ROOT = Path(__file__).parents[2]


def described(name, loss, folder):
    """Write the topology of a rival, beside its program, and return its path."""
    program = name.removesuffix("_floats") + ".json"
    shutil.copy(PROGRAMS / program, folder)
    links = [{"ends": [f"h{port}", f"s1-p{port}"], "loss": loss} for port in range(1, WORKERS + 2)]
    workers = [f"h{port}" for port in range(1, WORKERS + 1)]
    job = {"workers": workers, "server": f"h{WORKERS + 1}", "lanes": LANES, "program": program}
    hosts = {link["ends"][0]: {} for link in links}
    network = {"hosts": hosts, "switches": {"s1": {}}, "links": links, "job": job}
    (path := folder / "topology.json").write_text(json.dumps(network))
    return path


def summed(name, seed, folder, start):
    """Sum; return each worker's sums, uint32[elements], and its report. start: starts a command at a host."""
    command = [sys.executable, "-m", "benchmarks.rivals.real_time", name, "--seed", str(seed)]
    server = start(f"h{WORKERS + 1}", command) if name == "atp" else None
    try:
        command += ["--elements", str(ELEMENTS), "--results"]
        files = [folder / f"{worker}.npy" for worker in range(WORKERS)]
        workers = [start(f"h{worker + 1}", [*command, file]) for worker, file in enumerate(files)]
        reports = [json.loads(worker.communicate(timeout=PATIENCE_S)[0]) for worker in workers]
    finally:
        if server is not None:
            server.terminate()
            server.wait()
    return [np.load(file).reshape(-1)[:ELEMENTS] for file in files], reports


def check(name, seed, results):
    """Compare results with sums of Python's numbers: the same, or within the paper's bound."""
    words = real_time.words_of(name, WORKERS, ELEMENTS, seed)
    assert not (words[:, :-1] == words[:, 1:]).all()
    for result in results:
        if name in FLOATS:
            check_floats(name, words, result)
        else:
            columns = zip(*(worker.tolist() for worker in words), strict=True)
            assert result.tolist() == [sum(column) % (1 << 32) for column in columns]


def check_floats(name, words, result):
    """Compare sums with fractions."""
    values, sums = words.view(np.float32).tolist(), result.view(np.float32).tolist()
    chunk = LANES * (THC.values_per_lane if name == "thc" else 1)
    for first in range(0, ELEMENTS, chunk):
        bound = bound_of(name, [abs(value) for worker in values for value in worker[first : first + chunk]])
        for element in range(first, min(first + chunk, ELEMENTS)):
            exact = sum(Fraction(worker[element]) for worker in values)
            assert abs(Fraction(sums[element]) - exact) <= bound + abs(exact) / 2**24, element


def bound_of(name, magnitudes):
    """Return how far a sum in a chunk may be off, by the papers, besides the rounding to a float."""
    largest = max(magnitudes)
    if name == "thc":
        # A value is somewhere between two levels, which divide the range from -largest to largest.
        gap = max(b - a for a, b in pairwise(THC_LEVELS))
        return WORKERS * 2 * Fraction(largest) * Fraction(gap, THC_LEVELS[-1])
    # Values are below 2**k, and are scaled so that the sum of all workers' fits in 32 bits.
    exponent = int(np.frexp(largest)[1]) if largest else -126
    return WORKERS * WORKERS * Fraction(2) ** max(exponent, -126) / (2**31 - WORKERS)


def test_a_switch_that_is_loaded_again_sums_again(tmp_path):
    """By `readmit`, and after its process has ended."""
    topology = description.read(str(described("switchml", 0.01, tmp_path)))
    with UdpNetwork(topology, restart=True) as network:

        def start(host, command):
            environment = os.environ | network.places[host].environment
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)

        lost = 0
        for seed, load_again in enumerate((list, network.readmit, lambda: kill_switch(network))):
            load_again()
            results, reports = summed("switchml", seed, tmp_path, start)
            check("switchml", seed, results)
            lost += sum(report["resends"] for report in reports)
        assert lost


@pytest.mark.system
@pytest.mark.usefixtures("own_folder")
def test_readmit_returns_when_the_program_is_loaded_again(tmp_path):
    """Without it, the registers have the sums of the last run, so that the next run's are wrong."""
    peelsum = [sys.executable, "-m", "peelsum.cli"]
    subprocess.run([*peelsum, "up", described("switchml", 0.0, tmp_path), "--detach"], check=True)
    try:
        statuses = []
        for is_loaded_again in (False, False, True):
            if is_loaded_again:
                subprocess.run([*peelsum, "readmit"], check=True, timeout=PATIENCE_S)
            command = [sys.executable, "-m", "benchmarks.rivals.real_time", "switchml"]
            hosts = [f"h{worker + 1}" for worker in range(WORKERS)]
            workers = [subprocess.Popen([*peelsum, "exec", host, "--", *command], cwd=ROOT) for host in hosts]
            statuses.append({worker.wait(PATIENCE_S) for worker in workers})
        assert statuses == [{0}, {1}, {0}]
    finally:
        subprocess.run([*peelsum, "down"], check=True)


@pytest.mark.parametrize("payload", [b"1", bytes(15), bytes(17), bytes(19)])
def test_what_is_no_message_is_ignored(payload):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as switch:
        switch.bind(("127.0.0.1", 0))
        address = dict(zip(("switch_host", "switch_port"), switch.getsockname(), strict=True))
        with ThreadPoolExecutor() as pool:
            opened = pool.submit(real_time.Port, {**address, "wire": "udp-port"})
            host = switch.recvfrom(9)[1]
            switch.sendto(b"", host)
            port = opened.result()
        switch.sendto(payload, host)
        assert port.receive(PATIENCE_S) is None
        switch.sendto(bytes(16), host)
        assert port.receive(PATIENCE_S).words.tolist() == []


def test_a_host_without_a_seat_is_one_line():
    command = [sys.executable, "-m", "benchmarks.rivals.real_time", "switchml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "peelsum: no seat of a job with a program; run this by `peelsum exec` at one of its hosts\n"
    )


def test_a_worker_alone_says_whom_it_waits_for(tmp_path):
    (path := described("switchml", 0.0, tmp_path)).write_text(
        json.dumps((content := json.loads(path.read_text())) | {"job": content["job"] | {"timeout_s": 3.0}})
    )
    with UdpNetwork(description.read(str(path))) as network:
        command = [sys.executable, "-m", "benchmarks.rivals.real_time", "switchml"]
        seat = os.environ | network.places["h2"].environment
        done = subprocess.run(command, cwd=ROOT, env=seat, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    sums = "worker 1: 0 of 6250 sums, and no packet for"
    hint = "start h1, h3, too, with the protocol of switchml.json, which the switch runs; load it again"
    warning, error = done.stderr.splitlines()
    assert warning.startswith(f"{sums} 2 s; waiting up to 3 s: {hint}")
    assert error.startswith(f"peelsum: {sums} 3 s; {hint}")
    assert "h4" not in warning  # the server, which SwitchML does not have


def test_a_host_of_a_switch_that_has_ended_says_so(tmp_path):
    with UdpNetwork(description.read(str(described("switchml", 0.0, tmp_path)))) as network:
        seat = json.loads(network.places["h1"].environment[real_time.SEAT])
    with pytest.raises(ProcessError, match=rf"127\.0\.0\.1:{seat['switch_port']}: the switch has ended"):
        real_time.Port(seat)


def test_readmit_takes_ports_back_that_another_job_has_taken(tmp_path):
    with UdpNetwork(description.read(str(described("switchml", 0.0, tmp_path)))) as network:
        seat = json.loads(network.places["h1"].environment[real_time.SEAT])
        with Session(network.p4runtime["s1"], timeout_s=PATIENCE_S) as session:
            with pytest.raises(SwitchError, match="is not peelsum's"):
                lanes_and_slots(session)
            session.become_primary()
            session.write_raw(V1Model(session).secret_updates({1: "17" * 16}, set()))
        with pytest.raises(ProcessError, match=r"belongs to another job.*peelsum readmit"):
            real_time.Port(seat)
        network.readmit()
        real_time.Port(seat)


def kill_switch(network):
    os.kill(network.processes["s1"], signal.SIGKILL)
    while not network.check():
        pass


@pytest.mark.system
@pytest.mark.parametrize("loss", [0.0, 0.01])
@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("target", ["softswitch-udp", "softswitch-veth", "bmv2-veth"])
def test_rivals_sum_exactly_or_within_their_bounds(target, name, loss, tmp_path, monkeypatch):
    switch, links = target.split("-")
    if links == "veth" and networks.REFUSAL:
        pytest.skip(networks.REFUSAL)
    if switch == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("simple_switch_grpc is not on PATH")
    if links == "veth" and loss and shutil.which("nft") is None:
        pytest.skip("nft is not on PATH")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def start(host, command):
        words = [*networks.PEELSUM, "exec", host, "--", *command]
        return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    options = ["--links", links, "--switch", switch, "--detach"]
    up = [*networks.PEELSUM, "up", described(name, loss, tmp_path), *options]
    subprocess.run(up, check=True, timeout=PATIENCE_S)
    try:
        results, reports = summed(name, 5, tmp_path, start)
    finally:
        subprocess.run([*networks.PEELSUM, "down"], check=True, timeout=PATIENCE_S)
    check(name, 5, results)
    # On a busy machine, packets are sent again that were not lost.
    assert bool(loss) <= any(report["resends"] for report in reports)
    assert not any(report["wrong"] for report in reports)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("pipe.toml", "is not a regular file; give the path"),
        ("missing.json", "No such file or directory; give the path"),
        ("text.json", "is no BMv2 JSON; give the path"),
        ("list.json", "is no BMv2 JSON; give the path"),
        ("deep.json", "has lists or tables nested too deeply"),
        ("other.json", "lanes_h"),
    ],
)
def test_an_unusable_program_is_named(named_pipe, tmp_path, program, reason):
    (tmp_path / "text.json").write_text("header")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "other.json").write_text('{"header_types": []}')
    path = described("switchml", 0.0, tmp_path)
    path.write_text(path.read_text().replace("switchml.json", program))
    with (
        pytest.raises(TopologyError, match=rf"job\.program: .*/{program}: {reason}"),
        UdpNetwork(description.read(str(path))),
    ):
        pass


def test_a_program_with_too_many_lanes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_MOST_BYTES", (PROGRAMS / "switchml.json").stat().st_size)
    topology = description.read(str(described("switchml", 0.0, tmp_path)))
    with pytest.raises(TopologyError, match="bytes with 16 lanes; use fewer"), UdpNetwork(topology):
        pass

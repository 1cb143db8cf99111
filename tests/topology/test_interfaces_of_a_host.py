"""Two workers on one host, in two planes: each has an interface of its own to each of two switches."""

import json
import subprocess
import sys
from contextlib import ExitStack

import networks
import pytest
from machines import machines
from networks import PEELSUM, ROOT
from patience import PATIENCE_S

from peelsum.topology.namespaces import inside

pytestmark = [pytest.mark.system, networks.needs_namespaces]
#: By plane: P4Runtime's port, and what the names of its links start with.
PLANES = ((9559, "a"), (9558, "b"))
JOB = """
[job]
id = 1
workers = 2
[switch]
p4runtime = "127.0.0.1:{port}"
pipeline_lanes = 32
address = {{ mac = "02:00:00:00:0{plane}:fd", ip = "10.0.{plane}.253" }}
[ports]
workers = [1, 2]
server = 3
[hosts]
"""
HOST = '{n} = {{ mac = "02:00:00:00:0{plane}:0{n}", ip = "10.0.{plane}.{n}" }}\n'


@pytest.fixture
def seats(tmp_path):
    """Seats of the two workers, and their host: a process whose namespace it is."""
    with machines("switches", "host", "servers") as made, ExitStack() as stack:

        def run(where, *words):
            done = subprocess.run(inside(where, *words), check=True, capture_output=True, timeout=PATIENCE_S)
            return done.stdout.decode()

        def start(where, *words):
            command = inside(where, *PEELSUM, *words, "--json")
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.terminate)
            assert process.stdout.readline()

        switches, host, servers = made.values()
        planes = []
        for plane, (port, name) in enumerate(PLANES):
            job = JOB.format(port=port, plane=plane)
            for n, where in ((1, host), (2, host), (3, servers)):
                mac = f"02:00:00:00:0{plane}:0{n}"
                ends = ["type", "veth", "peer", f"{name}{n}", "address", mac, "netns", str(where)]
                run(switches, "ip", "link", "add", f"{name}{n}", *ends)
                run(switches, "ip", "link", "set", f"{name}{n}", "up")
                run(where, "ip", "address", "add", f"10.0.{plane}.{n}/24", "dev", f"{name}{n}")
                run(where, "ip", "link", "set", f"{name}{n}", "up")
                there = ["lladdr", f"02:00:00:00:0{plane}:fd", "dev", f"{name}{n}"]
                run(where, "ip", "neigh", "replace", f"10.0.{plane}.253", *there)
                job += HOST.format(n=n, plane=plane)
            (tmp_path / f"{name}.toml").write_text(job)
            ports = [f"--interface={n}@{name}{n}" for n in (1, 2, 3)]
            start(switches, "switch", "run", *ports, "--p4runtime", f"127.0.0.1:{port}")
            admitted = run(switches, *PEELSUM, "job", "admit", str(tmp_path / f"{name}.toml"), "--json")
            (tmp_path / f"{name}.json").write_text(admitted)
            at = f"10.0.{plane}.253"
            start(servers, "server", "run", "--switch", f"{at}:20563", "--ethernet",
                  "--admission", str(tmp_path / f"{name}.json"))  # fmt: skip
            planes.append({"admission": json.loads(admitted), "switch_host": at, "switch_port": 20563})
        seat = {**planes[0], "wire": "ethernet", "more_planes": planes[1:]}
        yield host, [{**seat, "worker_id": n, "interfaces": [f"a{n + 1}", f"b{n + 1}"]} for n in (0, 1)]


def test_two_workers_of_a_host_sum_in_two_planes(seats):
    host, each = seats
    program = [sys.executable, str(ROOT / "examples/sum.py")]
    commands = [inside(host, "env", f"PEELSUM_SEAT={json.dumps(seat)}", *program) for seat in each]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    said = [one.communicate(timeout=PATIENCE_S)[0].decode() for one in workers]
    assert said == ["worker 0: exact\n", "worker 1: exact\n"]
    shown = subprocess.run(inside(host, "ip", "-s", "-j", "link"), check=True, capture_output=True).stdout
    sent = {one["ifname"]: one["stats64"]["tx"]["packets"] for one in json.loads(shown)}
    assert all(sent[name] > 64 for name in ("a1", "a2", "b1", "b2")), sent

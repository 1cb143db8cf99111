"""Whole jobs through BMv2 and the softswitch, on wires between network namespaces, while parts fail.

Workers, server, switches and controller are the processes that a user would start. Every bit of every sum is
compared by every worker with what it computes from all workers' words.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from networks import PEELSUM, ROOT, exec_in, needs_nftables, own_folder, said, switch, up
from patience import PATIENCE_S

__all__ = ["own_folder", "switch"]

WORKER = str(Path(__file__).parents[1] / "support" / "scenario_worker.py")
#: Rounds of sums, and chunks in each.
ROUNDS, CHUNKS = 20, 100
PAUSE = 5

pytestmark = [pytest.mark.usefixtures("own_folder"), pytest.mark.system]


def star(tmp_path, *, hosts=3, loss=0.0, job=True, timeout_s=PATIENCE_S):
    """A description of one switch, a job's server last."""
    names = [f"h{number}" for number in range(1, hosts + 1)]
    network = {
        "hosts": {name: {} for name in names},
        "switches": {"s1": {}},
        "links": [{"ends": [name, f"s1-p{port}"], "loss": loss} for port, name in enumerate(names, 1)],
    }
    if job:
        network["job"] = {"workers": names[:-1], "server": names[-1], "lanes": 32, "timeout_s": timeout_s}
    return written(tmp_path, network)


def written(tmp_path, network):
    path = tmp_path / "network.json"
    path.write_text(json.dumps(network))
    return str(path)


def worker_at(host, *, first=1, last=ROUNDS, chunks=CHUNKS, pauses=(), before=()):
    return exec_in(host, *before, sys.executable, WORKER, *map(str, (first, last, chunks, *pauses)))


def await_pause(worker, round_):
    assert worker.stdout.readline() == f"before {round_}\n"


def go_on(worker):
    worker.stdin.write("\n")
    worker.stdin.flush()


def test_a_worker_starts_again_and_the_job_goes_on_where_it_was(tmp_path, switch):
    with up(star(tmp_path, timeout_s=5.0), "veth", switch):
        workers = [worker_at("h1", pauses=[1, PAUSE]), worker_at("h2", pauses=[1])]
        for worker in workers:  # else the first to start may wait longer than the timeout for the second
            await_pause(worker, 1)
        for worker in workers:
            go_on(worker)
        await_pause(workers[0], PAUSE)
        workers[0].kill()
        workers[0].communicate()
        message = workers[1].communicate()[1]
        assert "no progress on chunk" in message
        assert "still waiting for worker 0" in message
        subprocess.run([*PEELSUM, "readmit"], check=True)
        workers = [worker_at(host, first=PAUSE) for host in ("h1", "h2")]
        assert [said(worker) for worker in workers] == ["exact", "exact"]


def description(job_id, workers, server, p4runtime):
    """A job of hosts on the wires of these ports, for `peelsum job admit`."""
    text = (
        f"[job]\nid = {job_id}\nworkers = {len(workers)}\nwindow = 64\ntimeout_s = {PATIENCE_S}\n"
        f"[ports]\nworkers = {workers}\nserver = {server}\n"
        f'[switch]\np4runtime = "{p4runtime}"\npipeline_lanes = 32\nage_limit_ms = 60000.0\n'
        'address = { mac = "02:00:00:00:ff:fe", ip = "10.0.0.254" }\n'
    )
    for port in (*workers, server):
        text += f'[hosts.{port}]\nmac = "02:00:00:00:00:{port:02x}"\nip = "10.0.0.{port}"\n'
    return text


def admitted(tmp_path, job_id, workers, server, p4runtime):
    path = tmp_path / f"job{job_id}.toml"
    path.write_text(description(job_id, workers, server, p4runtime))
    return json.loads(said(exec_in("s1", *PEELSUM, "job", "admit", str(path), "--json")))


def served(admission, host):
    """The job's server at a host, ready."""
    options = ("--switch", "10.0.0.254:20563", "--admission", json.dumps(admission), "--ethernet", "--json")
    server = exec_in(host, *PEELSUM, "server", "run", *options)
    assert server.stdout.readline().startswith("{")
    return server


def seated(admission, host, worker_id, **rounds):
    seat = {
        "worker_id": worker_id,
        "switch_host": "10.0.0.254",
        "switch_port": 20563,
        "wire": "ethernet",
        "admission": admission,
    }
    return worker_at(host, before=("env", f"PEELSUM_SEAT={json.dumps(seat)}"), **rounds)


def test_two_jobs_collide_on_slots(tmp_path, switch):
    """One job holds slots while the other goes through all that there are; then they go on side by side."""
    with up(star(tmp_path, hosts=6, job=False), "veth", switch) as network:
        p4runtime = network.said["p4runtime"]["s1"]
        patient = admitted(tmp_path, 7, [1, 2], 3, p4runtime)
        busy = admitted(tmp_path, 8, [4, 5], 6, p4runtime)
        servers = [served(patient, "h3"), served(busy, "h6")]
        waiting = [seated(patient, "h1", 0, pauses=[PAUSE]), seated(patient, "h2", 1)]
        await_pause(waiting[0], PAUSE)
        running = [
            seated(busy, host, n, last=2, chunks=patient["slots"]) for n, host in enumerate(("h4", "h5"))
        ]
        assert [said(worker) for worker in running] == ["exact", "exact"]
        go_on(waiting[0])
        assert [said(worker).split()[-1] for worker in waiting] == ["exact", "exact"]
        status = json.loads(said(exec_in("s1", *PEELSUM, "status", "--p4runtime", p4runtime, "--json")))
        assert status["verdicts"]["collided"] > 0
        for server in servers:
            said(server)


def test_a_second_job_beside_a_held_one_and_a_restart_under_both(tmp_path, switch):
    """Each has a controller of its own, which puts its tables back."""
    hosts = {f"h{n}": {} for n in range(1, 7)}
    held = {"workers": ["h1", "h2"], "server": "h3", "lanes": 32}
    links = [[f"h{n}", f"s1-p{n}"] for n in range(1, 7)]
    network = {"hosts": hosts, "switches": {"s1": {}}, "links": links, "job": held}
    with up(written(tmp_path, network), "veth", switch, "--restart") as network:
        path = tmp_path / "job8.toml"
        path.write_text(description(8, [4, 5], 6, network.said["p4runtime"]["s1"]))
        holder = exec_in("s1", *PEELSUM, "job", "admit", str(path), "--hold", "--json")
        second = json.loads(holder.stdout.readline())
        server = served(second, "h6")
        workers = [worker_at("h1", pauses=[PAUSE]), worker_at("h2")]
        workers += [seated(second, "h4", 0, pauses=[PAUSE]), seated(second, "h5", 1)]
        for worker in workers[::2]:
            await_pause(worker, PAUSE)
        network.kill_part("s1")
        for worker in workers[::2]:
            go_on(worker)
        assert [said(worker) for worker in workers] == ["exact"] * 4
        said(server)
        holder.terminate()
        assert "restored on" in said(holder)


@needs_nftables
def test_racks_below_a_spine_and_links_that_lose(switch):
    with up(str(ROOT / "examples/topologies/racks.toml"), "veth", switch):
        workers = [worker_at(f"h{number}", last=8) for number in range(1, 6)]
        assert [said(worker) for worker in workers] == ["exact"] * 5

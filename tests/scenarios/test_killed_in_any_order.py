"""Controller, backup, switch and server of a running job are killed, in any order.

Started again, as systemd does, the job ends exact. Left dead, it ends with one clear error. Nothing is left
over.
"""

import itertools
import json
import os
import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import psutil
import pytest
from clusters import cluster_text, job_text
from free_ports import KeptPort, free_udp_base
from patience import PATIENCE_S

from peelsum.allreduce import Part
from peelsum.control import ControlError
from peelsum.control.cluster import ControllerClient, Store
from peelsum.processes import Child
from peelsum.transport import SwitchSummation, TransportError, job_config

VICTIMS = ("primary", "backup", "switch", "server")
ORDERS = list(itertools.permutations(VICTIMS))
FEW = {("primary", "switch", "server", "backup"), ("server", "backup", "switch", "primary")}
SHARDS = [
    pytest.param(order, id="-".join(order), marks=[] if order in FEW else [pytest.mark.slow])
    for order in ORDERS
]
WORDS, PORTS = 5000, 3


def words(worker, number):
    return np.random.default_rng((worker, number)).integers(0, 2**32, WORDS, np.uint32)


class Workers:
    """Two workers, each in a thread, that sum one round after the other until `finish`."""

    def __init__(self, admission, base):
        config = job_config(admission)
        self._summations = [
            SwitchSummation(config, worker, ("127.0.0.1", base + port))
            for worker, port in zip(config.worker_ids, admission["worker_ports"], strict=True)
        ]
        self._lock, self._last, self.rounds = threading.Lock(), None, [0, 0]
        self._threads = ThreadPoolExecutor(2)
        self._runs = [self._threads.submit(self._run, worker) for worker in range(2)]

    def _begins(self, worker):
        with self._lock:
            if self._last is not None and self.rounds[worker] >= self._last:
                return False
            self.rounds[worker] += 1
            return True

    def _run(self, worker):
        while self._begins(worker):
            number = self.rounds[worker]
            (result,) = self._summations[worker].sum_words([Part(words(worker, number), "add")])
            np.testing.assert_array_equal(result, words(0, number) + words(1, number))

    def wait_for_rounds(self, more):
        """Wait until both have begun so many more rounds, or one has failed."""
        goals, deadline = [done + more for done in self.rounds], time.monotonic() + PATIENCE_S
        while any(done < goal for done, goal in zip(self.rounds, goals, strict=True)):
            if any(run.done() for run in self._runs):
                return
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def finish(self):
        """End both after the same round; return their errors."""
        with self._lock:
            self._last = max(self.rounds)
        return [error for run in self._runs if (error := run.exception(PATIENCE_S)) is not None]

    def failed(self):
        """Wait until both have failed; return their errors."""
        return [run.exception(PATIENCE_S) for run in self._runs]

    def close(self):
        for summation in self._summations:
            summation.close()
        self._threads.shutdown()


class Scene:
    """The processes of a cluster with one job, each of which can be killed and started again."""

    def __init__(self, folder, timeout_s):
        self.folder, self.base = folder, free_udp_base(PORTS)
        self.pids, self.children = [], {}
        self.kept = [KeptPort() for _ in range(3)]
        self.p4runtime, primary, backup = (port.address for port in self.kept)
        self.listens = {"primary": primary, "backup": backup}
        self.start("switch")
        (folder / "cluster.toml").write_text(cluster_text([self.p4runtime], poll_s=0.2))
        self.start("primary")
        while self.children["primary"].next_message(PATIENCE_S)["kind"] != "regained":
            pass
        self.start("backup")
        self.client = ControllerClient(list(self.listens.values()))
        text = job_text(1, self.p4runtime, ports=(1, 2), up=3)
        self.admission = self.client.admit(text.replace("window", f"timeout_s = {timeout_s}\nwindow"))
        self.start("server")

    def start(self, name):
        child = self.children[name] = Child.peelsum(name, *self._words(name), "--json", "--child")
        self.pids.append(child.pid)
        child.ready()

    def _words(self, name):
        if name == "switch":
            ports = ("--ports", str(PORTS), "--udp-base", str(self.base))
            return ("switch", "run", *ports, "--p4runtime", self.p4runtime)
        if name == "server":
            at = f"127.0.0.1:{self.base + self.admission['server_port']}"
            return ("server", "run", "--switch", at, "--admission", json.dumps(self.admission))
        config = str(self.folder / "cluster.toml")
        return ("controller", "run", "--config", config, "--listen", self.listens[name])

    def kill(self, name):
        child = self.children.pop(name)
        os.kill(child.pid, signal.SIGKILL)
        child.stop()

    def stop(self):
        for name in list(self.children):
            self.children.pop(name).stop()
        for port in self.kept:
            port.close()

    def check_nothing_is_left(self):
        assert not [pid for pid in self.pids if psutil.pid_exists(pid)]
        for port in range(1, PORTS + 1):
            with socket.socket(type=socket.SOCK_DGRAM) as free:
                free.bind(("127.0.0.1", self.base + port))
        for place in (self.p4runtime, *self.listens.values()):
            with socket.socket() as free:
                free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                free.bind(("127.0.0.1", int(place.rpartition(":")[2])))
        Store(self.folder / "cluster.sqlite").close()  # after SIGKILL, SQLite's own files end with this
        assert sorted(path.name for path in self.folder.iterdir()) == ["cluster.sqlite", "cluster.toml"]
        assert list((self.folder.parent / "tmp").iterdir()) == []


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """Return a function that starts a scene; temporary files of its processes have a folder of their own."""
    for name in ("tmp", "cluster"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with ExitStack() as stack:

        def started(timeout_s):
            made = Scene(tmp_path / "cluster", timeout_s)
            stack.callback(made.stop)
            return made

        yield started


@pytest.mark.system
@pytest.mark.parametrize("order", SHARDS)
def test_restarted_each_time_the_job_ends_exact(scene, order):
    made, rng = scene(timeout_s=PATIENCE_S), random.Random(ORDERS.index(order))
    workers = Workers(made.admission, made.base)
    try:
        workers.wait_for_rounds(2)
        for victim in order:
            made.kill(victim)
            time.sleep(rng.uniform(0.0, 0.5))
            made.start(victim)
            if rng.random() < 0.5:  # otherwise the next dies before the job has recovered
                workers.wait_for_rounds(2)
        workers.wait_for_rounds(5)
        assert workers.finish() == []
    finally:
        workers.close()
    (job,) = made.client.list()["jobs"]
    assert (job["generation"], job["state"]) == (made.admission["generation"], "admitted")
    made.client.evict(1)
    made.stop()
    made.check_nothing_is_left()


@pytest.mark.system
@pytest.mark.parametrize("order", SHARDS)
def test_left_dead_the_job_ends_with_one_clear_error(scene, order):
    made, rng = scene(timeout_s=5), random.Random(ORDERS.index(order))
    workers = Workers(made.admission, made.base)
    try:
        workers.wait_for_rounds(2)
        for victim in order:
            made.kill(victim)
            time.sleep(rng.uniform(0.0, 0.5))
        for error in workers.failed():
            assert isinstance(error, TransportError), error
            assert "job 1" in str(error) or "job: 1" in str(error)
            assert "\n" not in str(error)
    finally:
        workers.close()
    with pytest.raises(ControlError, match="controller: nothing answers at"):
        made.client.list()
    made.check_nothing_is_left()

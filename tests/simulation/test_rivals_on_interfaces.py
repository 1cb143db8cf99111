"""Rivals' programs and hosts in real time: sums through the softswitch's interfaces, and through BMv2's.

Sums are compared with Python's integers and fractions. The hosts' ends of the links lose packets, in both
directions.
"""

import contextlib
import json
import os
import random
import select
import shutil
import socket
import subprocess
import time
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import grpc
import networks
import numpy as np
import pytest
from finsy.proto import p4r
from p4runtime_client import Client
from patience import PATIENCE_S
from program_frames import for_bmv2
from rival_frames import THC_LEVELS, frame

from benchmarks.rivals.program_bench import SlotJob, unpack
from benchmarks.rivals.slot_protocols import PROTOCOLS, SWITCHML_FLOATS, THC
from peelsum.simulation import Job, TimersSection
from peelsum.topology import namespaces
from peelsum.topology.bmv2 import reserved_tcp_port
from peelsum.wire import FRAME_HEADER_BYTES

pytestmark = pytest.mark.system
WORKERS, LANES, CHUNKS = 3, 4, 200
RIVALS = {**PROTOCOLS, "switchml_floats": SWITCHML_FLOATS, "thc": THC}
SWITCHES = {"softswitch": [*networks.PEELSUM, "simple-switch"], "bmv2": ["simple_switch_grpc"]}
_SOL_PACKET, _IGNORE_OUTGOING, _ALL = 263, 23, 3


def words_of(name):
    """Return every worker's chunks, of which many are zero for all or some workers."""
    rng = np.random.default_rng(7)
    shape = (WORKERS, CHUNKS, LANES * RIVALS[name].values_per_lane)
    if name in ("switchml_floats", "thc"):
        values = rng.normal(size=shape) * 2.0 ** rng.integers(-140, 124, (1, CHUNKS, 1))
        values[:, :9] = 0
        return values.astype(np.float32).view(np.uint32)
    return rng.integers(0, 1 << 32, shape, np.uint32) * (rng.random((WORKERS, CHUNKS, 1)) < 0.3)


def bounds(name, words):
    """Return how far a sum of each chunk may be off, by the papers, besides the rounding to a float."""
    largest = [Fraction(float(chunk.max())) for chunk in np.abs(words.view(np.float32)).transpose(1, 0, 2)]
    if name == "thc":
        # A value is somewhere between two levels, which divide the range from -largest to largest.
        gap = max(b - a for a, b in pairwise(THC_LEVELS))
        return [WORKERS * 2 * most * Fraction(gap, THC_LEVELS[-1]) for most in largest]
    # Values are below 2**k, and are scaled so that the sum of all workers' fits in 32 bits.
    exponents = [int(np.frexp(float(most))[1]) if most else -126 for most in largest]
    powers = [Fraction(2) ** max(exponent, -126) for exponent in exponents]
    return [WORKERS * WORKERS * power / (2**31 - WORKERS) for power in powers]


@contextlib.contextmanager
def running(command, program, ports):
    """Start a switch with a program on veth pairs in this network namespace; yield the hosts' sockets."""
    sockets = {}
    for port in ports:
        namespaces.add_wire(f"switch{port}", f"host{port}")
        sockets[port] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
        sockets[port].setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        sockets[port].bind((f"host{port}", _ALL))
    interfaces = [word for port in ports for word in ("-i", f"{port}@switch{port}")]
    with reserved_tcp_port() as port, (Path(os.environ["FOLDER"]) / "switch.log").open("wb") as log:
        address = f"127.0.0.1:{port}"
        options = ["--device-id", "1", *interfaces, "--no-p4", "--", "--grpc-server-addr", address]
        switch = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        try:
            client = Client(address)
            grpc.channel_ready_future(client.channel).result(timeout=PATIENCE_S)
            client.become_primary()
            client.set_pipeline(p4r.ForwardingPipelineConfig(p4_device_config=program))
            group = p4r.MulticastGroupEntry(multicast_group_id=1)
            for worker in range(WORKERS):
                group.replicas.add(egress_port=worker)
            client.update("INSERT", packet_replication_engine_entry={"multicast_group_entry": group})
            yield sockets
        finally:
            switch.terminate()
            switch.wait(timeout=PATIENCE_S)


def summed():
    """Sum through a switch; return each worker's results, and how many packets were lost and sent again."""
    name, loss, target = os.environ["RIVAL"], float(os.environ["LOSS"]), os.environ["TARGET"]
    protocol, rng = RIVALS[name], random.Random(5)
    timers = TimersSection(resend_least=0.2, resend_most=2.0)
    settings = Job(workers=WORKERS, window=16, initial_window=16, timers=timers)
    result_lanes = LANES * protocol.lane_growth
    job = SlotJob(1, 1, 256, settings, words_of(name), LANES, result_lanes, range(WORKERS), WORKERS)
    workers = [protocol.worker(job, number) for number in range(WORKERS)]
    ends = dict(enumerate([*workers, *([] if protocol.server is None else [protocol.server(job)])]))
    document = for_bmv2(json.loads(protocol.program.read_text()))
    lost = 0
    with running(SWITCHES[target], json.dumps(document).encode(), range(len(ends))) as sockets:

        def send(port, messages):
            nonlocal lost
            for message in messages:
                if rng.random() < loss:
                    lost += 1
                else:
                    sockets[port].send(frame(job, message))

        deadline = time.monotonic() + PATIENCE_S
        for port, end in ends.items():
            send(port, end.start(time.monotonic()))
        while not all(worker.done for worker in workers):
            now = time.monotonic()
            assert now < deadline, [len(worker.results) for worker in workers]
            for port, end in ends.items():
                if (due := end.next_timer()) is not None and due <= now:
                    send(port, end.expire(now))
            dues = [due for end in ends.values() if (due := end.next_timer()) is not None]
            wait = max(0.0, min(dues, default=now + 1) - now)
            ready = select.select(list(sockets.values()), [], [], wait)[0]
            for port, sock in sockets.items():
                if sock in ready:
                    raw = sock.recv(1 << 16)
                    if rng.random() < loss:
                        lost += 1
                        continue
                    payload = np.frombuffer(raw[FRAME_HEADER_BYTES:], np.uint8)
                    send(port, ends[port].receive(unpack(payload[np.newaxis])[0], time.monotonic()))
    results = [{chunk: lanes.tolist() for chunk, lanes in worker.results.items()} for worker in workers]
    return {"results": results, "lost": lost, "again": sum(worker.resends for worker in workers)}


@pytest.mark.parametrize("loss", [0.0, 0.01])
@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("target", SWITCHES)
def test_rivals_sum_exactly_or_within_their_bounds(target, name, loss, tmp_path, monkeypatch):
    if target == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("simple_switch_grpc is not on PATH")
    for variable, value in (("TARGET", target), ("RIVAL", name), ("LOSS", loss), ("FOLDER", tmp_path)):
        monkeypatch.setenv(variable, str(value))
    outcome = networks.alone(__file__, "summed")
    words = words_of(name)
    for worker in outcome["results"]:
        # OmniReduce sends no block that is zero for all workers, except the first ones.
        zeros = np.zeros(words.shape[1:], np.uint32)
        results = np.array([worker.get(str(chunk), zeros[chunk]) for chunk in range(CHUNKS)], np.uint32)
        if name in ("switchml_floats", "thc"):
            check_floats(name, words, results)
        else:
            each = (chunks.reshape(-1).tolist() for chunks in words)
            assert results.reshape(-1).tolist() == [
                sum(column) % (1 << 32) for column in zip(*each, strict=True)
            ]
    # On a busy machine, packets are sent again that were not lost.
    assert bool(outcome["lost"]) == bool(loss) <= bool(outcome["again"])


def check_floats(name, words, results):
    """Compare sums with fractions."""
    values, sums = words.view(np.float32).tolist(), results.view(np.float32).tolist()
    for chunk, bound in enumerate(bounds(name, words)):
        for lane, value in enumerate(sums[chunk]):
            exact = sum(Fraction(values[worker][chunk][lane]) for worker in range(WORKERS))
            assert abs(Fraction(value) - exact) <= bound + abs(exact) / 2**24, (chunk, lane)


if __name__ == "__main__":
    networks.main({"summed": summed})

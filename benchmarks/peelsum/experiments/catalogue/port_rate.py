"""How well a switch port keeps to its rate under 1.3 times the load.

One port of a switch process gets 1.3 times what it may send, for 3 s, over loopback.
"""

from __future__ import annotations

import multiprocessing
import select
import time
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

from peelsum.bench.fairness import Scene, admit
from peelsum.experiments import Column, Experiment, Size
from peelsum.topology import Child
from peelsum.transport import JobConfig
from peelsum.wire import COMPILED_LANES, FRAME_HEADER_BYTES, Kind, pack, packet_bytes
from peelsum.wire.datagrams import Address, BatchSocket

SETTLE_S, SECONDS = 0.5, 3.0
#: Sent packets over what the port's rate allows.
EXCESS = 1.3
BURST = 64


def flood(address: Address, job: JobConfig, packets_per_s: float, ended: Event) -> None:
    """Send packets that bypass the switch's slots to the server's port, until `ended` is set."""
    batch = pack(
        np.zeros((BURST, job.lanes), np.uint32),
        kind=Kind.BYPASS,
        chunk_id=range(BURST),
        job_id=job.job_id,
        generation=job.generation,
        sender=0,
        bitmap=1,
    )
    with BatchSocket.bind(("127.0.0.1", 0), batch.shape[1]) as sock:
        sock.connect(address)
        sock.send_hello()
        sent, started = 0, time.perf_counter()
        while not ended.is_set():
            if sent < (time.perf_counter() - started) * packets_per_s:
                sent += sock.send(batch)
            else:
                time.sleep(1e-4)


def arrivals(sock: BatchSocket) -> tuple[np.ndarray, np.ndarray]:
    """Return the arrival times of bursts, in seconds, and their numbers of packets."""
    times, counts = [], []
    started = time.perf_counter()
    while (now := time.perf_counter() - started) < SETTLE_S + SECONDS:
        select.select([sock], [], [], 0.1)
        burst = sock.receive()
        if burst is not None and now >= SETTLE_S:
            times.append(now - SETTLE_S)
            counts.append(len(burst.packets))
    return np.array(times), np.array(counts)


def measure(seed: int, mbit: float, lanes: int) -> dict[str, Any]:
    """Flood one port of a switch process; return what arrived, and what was dropped.

    Raises TopologyError if the switch fails.
    """
    scene = Scene(1, lanes=lanes, mbit=mbit)
    rate = ("--port-rate", f"{scene.server_port}@{mbit}", "--json", "--child")
    switch = Child.peelsum("switch", "switch", "run", "--ports", "3", "--p4runtime", "127.0.0.1:0", *rate)
    context = multiprocessing.get_context("spawn")
    ended = context.Event()
    try:
        at = switch.ready()
        (job,) = admit(f"{at['host']}:{at['grpc_port']}", scene)
        ports = {int(port): (at["host"], udp) for port, udp in at["udp_ports"].items()}
        given = (ports[1], job, EXCESS / scene.frame_s, ended)
        with BatchSocket.bind(("127.0.0.1", 0), packet_bytes(lanes)) as sock:
            sock.connect(ports[scene.server_port])
            sock.send_hello()
            source = context.Process(target=flood, args=given)
            source.start()
            while (burst := sock.receive()) is None or burst.hello:
                select.select([sock], [], [], 1.0)
            times, counts = arrivals(sock)
            ended.set()
            source.join()
    finally:
        told = switch.stop()
    frame_mbit = 8e-6 * (FRAME_HEADER_BYTES + packet_bytes(lanes))
    windows = np.bincount((times / 0.01).astype(int), weights=counts)[:-1] * frame_mbit / 0.01
    queue = told["queues"][str(scene.server_port)]
    return {
        "got_mbit": round(float(counts.sum() * frame_mbit / SECONDS), 2),
        "least_10ms_mbit": round(float(np.percentile(windows, 5)), 1),
        "most_10ms_mbit": round(float(np.percentile(windows, 95)), 1),
        "dropped": queue["dropped"],
    }


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "got_mbit": Column("rate at which packets arrived, in Mbit/s"),
        "least_10ms_mbit": Column("5th percentile of the rates in windows of 10 ms, in Mbit/s"),
        "most_10ms_mbit": Column("95th percentile of these rates, in Mbit/s"),
        "dropped": Column("packets that the port dropped"),
    },
    sizes={
        "quick": Size([{"mbit": 100.0, "lanes": 256}], 1),
        "usual": Size([{"mbit": (100.0, 1000.0), "lanes": 256}, {"mbit": 1000.0, "lanes": 32}], 1),
    },
    ranges={"mbit": (1, 10_000)},
    choices={"lanes": COMPILED_LANES},
)

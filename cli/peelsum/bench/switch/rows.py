"""`peelsum bench switch`: rate and latency of one compiled pipeline, on the softswitch and on BMv2.

Every measurement sets up one switch and one load, in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from peelsum.bench.devices import cpu_s
from peelsum.bench.switch.load import (
    Hosts,
    Load,
    RingHosts,
    UdpHosts,
    WrongSumError,
    drive,
    time_slots,
)
from peelsum.control import ControlError, JobDescription
from peelsum.control.cluster import JobController
from peelsum.processes import ProcessError
from peelsum.processes.children import Child
from peelsum.processes.user_errors import sigint_blocked
from peelsum.softswitch import Frames
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.ports.udp import frame_header
from peelsum.softswitch.runtime.device import Device
from peelsum.switch_settings import Method
from peelsum.topology import bmv2, namespaces
from peelsum.topology.errors import TopologyError
from peelsum.wire import FRAME_HEADER_BYTES, Batch, packet_bytes

P = ParamSpec("P")
T = TypeVar("T")
#: Figures that are missing in some rows.
_OPTIONAL = (
    "packets_per_cpu_s",
    "latency_p50_us",
    "latency_p99_us",
    "slots_timed",
    "lost_chunks",
    "rate_to_bmv2",
    "latency_to_bmv2",
    "first_packet_cold_s",
    "first_packet_cached_s",
)
#: Measures, in a new process, the time from importing the softswitch to the first packet's output.
_FIRST_PACKET = """
import sys, time
started = time.perf_counter()
from peelsum.softswitch import Frames, Switch, load
from peelsum.pipelines import pipeline
Switch(load(pipeline(int(sys.argv[1])).json_path)).process(Frames.of([(1, bytes(2048))]), 0)
print(time.perf_counter() - started)
"""
#: Chunks per batch in memory; with 4 workers and the results, it has five times as many frames.
_MEMORY_WINDOW = 256
#: A multiple of the number of slots: chunks so far apart have the same slot.
_TURN = 1 << 16
_PORTS_WINDOW = 512
#: BMv2's queues hold 64 packets per port by default; it would drop more outstanding ones.
_BMV2_WINDOW = 64
#: Short, so that the slots of lost chunks are soon free for others.
_AGE_LIMIT_MS = 100.0
#: Seconds that a switch may take for the first chunk, even in a short measurement, on a slow machine.
_FIRST_CHUNK_S = 30.0


def in_memory(lanes: int, workers: int, seconds: float) -> dict[str, Any]:
    """Measure the softswitch without ports: repeat two batches of contributions and results.

    Their chunks have the same slots in turn, because a slot keeps the result of a chunk until another chunk
    takes it.
    """
    device = Device()
    server = serve(device, "127.0.0.1:0")
    try:
        load = _load(server.address, lanes, workers, _MEMORY_WINDOW)
        batches, latencies = [_batch(load, first) for first in (0, _TURN)], list[float]()
        switch, turns = device.switch, cycle(range(len(batches)))
        if switch is None:
            raise TopologyError("switch: has no pipeline after one was loaded; see its log")
        # First frame by frame, chunk by chunk, to time the call of the last contribution.
        frames = [
            [
                Frames(batch.data[i : i + 1], batch.length[i : i + 1], batch.port[i : i + 1])
                for i in range(len(batch))
            ]
            for batch in batches
        ]
        started = time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            now_us, turn = int(elapsed * 1e6), next(turns)
            for chunk in range(load.window):
                *contributions, last, result = frames[turn][chunk :: load.window]
                for frame in contributions:
                    switch.process(frame, now_us)
                sent_at = time.perf_counter()
                output = switch.process(last, now_us)
                latencies.append(time.perf_counter() - sent_at)
                load.check(_packets(load, output))
                switch.process(result, now_us)
        # Then whole batches, whose results free the slots, so that the switch accepts the other batch.
        output = switch.process(batches[next(turns)], 0)
        sent = np.bincount(output.port, minlength=workers + 2)[1:]
        if (sent != load.window).any():  # each chunk's sum to the server, its result to every worker
            raise WrongSumError(f"frames sent by port: {sent.tolist()} instead of {load.window} each")
        load.check(_packets(load, output))
        rounds, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            switch.process(batches[next(turns)], int(elapsed * 1e6))
            rounds += 1
        return _figures(np.array(latencies) * 1e6, rounds * load.window * workers / elapsed, 0)
    finally:
        server.stop()
        device.close()


def over_udp(lanes: int, workers: int, seconds: float) -> dict[str, Any]:
    """Measure the softswitch in a separate process; this process is all hosts behind its UDP ports."""
    with _softswitch("--ports", str(workers + 1)) as (listening, pid):
        load = _load(f"{listening['host']}:{listening['grpc_port']}", lanes, workers, _PORTS_WINDOW)
        udp_ports = {int(port): udp for port, udp in listening["udp_ports"].items()}
        with UdpHosts(listening["host"], udp_ports, workers, packet_bytes(lanes)) as hosts:
            return _measure(load, hosts, seconds, pid)


def over_interfaces(lanes: int, workers: int, seconds: float, method: Method) -> dict[str, Any]:
    """Measure the softswitch on virtual Ethernet pairs; this process is all hosts, by the same method."""
    switch_ends, host_ends = _add_wires(workers)
    interfaces = (f"--interface={port}@{name}" for port, name in switch_ends.items())
    with _softswitch(*interfaces, "--ports-by", method) as (listening, pid):
        load = _load(f"{listening['host']}:{listening['grpc_port']}", lanes, workers, _PORTS_WINDOW)
        with RingHosts(host_ends, workers, packet_bytes(lanes), method) as hosts:
            return _measure(load, hosts, seconds, pid)


def bmv2_over_veth(lanes: int, workers: int, seconds: float) -> dict[str, Any]:
    """Measure BMv2 on virtual Ethernet pairs; this process is all hosts, by AF_PACKET."""
    switch_ends, host_ends = _add_wires(workers)
    with bmv2.running(switch_ends) as (address, pid):
        load = _load(address, lanes, workers, _BMV2_WINDOW)
        with RingHosts(host_ends, workers, packet_bytes(lanes), "packet") as hosts:
            return _measure(load, hosts, seconds, pid)


def _add_wires(workers: int) -> tuple[dict[int, str], dict[int, str]]:
    """Make virtual Ethernet pairs in a new namespace; return the switch's and the hosts' ends, by port."""
    namespaces.enter_own_namespace()
    ports = range(1, workers + 2)
    for port in ports:
        namespaces.add_wire(f"switch{port}", f"host{port}")
    return {port: f"switch{port}" for port in ports}, {port: f"host{port}" for port in ports}


def _measure(load: Load, hosts: Hosts, seconds: float, pid: int) -> dict[str, Any]:
    """Measure latencies, then the rate. pid: the switch's process, whose processor time is measured."""
    # The first chunk warms up: it waits for compiled loops of the hosts, for longer than short measurements.
    used = 0
    for timed_s in (0.0, seconds):
        latencies = time_slots(
            load, hosts, timed_s, time.perf_counter, used=used, first_within=_FIRST_CHUNK_S
        )
        if not latencies.sum_us.size:
            waited_s = max(timed_s, _FIRST_CHUNK_S)
            raise TopologyError(
                f"switch: none of {latencies.lost} chunks came back in {waited_s:g} s; is it running?"
            )
        used += latencies.chunks
    cpu_started = cpu_s(pid)
    result = drive(load, hosts, seconds, time.perf_counter, used=used, first_within=_FIRST_CHUNK_S)
    contributions = result.chunks * load.workers
    figures = _figures(latencies.sum_us, contributions / result.seconds, result.lost)
    figures["packets_per_cpu_s"] = round(contributions / (cpu_s(pid) - cpu_started))
    return figures


def _figures(latencies_us: NDArray[np.float64], packets_per_s: float, lost: int) -> dict[str, Any]:
    """Return a row's figures. lost: chunks lost under load."""
    p50, p99 = np.percentile(latencies_us, (50, 99)).tolist()
    return {
        "packets_per_s": round(packets_per_s),
        "latency_p50_us": round(p50, 1),
        "latency_p99_us": round(p99, 1),
        "slots_timed": len(latencies_us),
        "lost_chunks": lost,
    }


def _batch(load: Load, first: int) -> Frames:
    """Return all contributions and results of the chunks from `first` on as frames, worker by worker.

    Workers are behind ports 1 to n, the server behind port n + 1.
    """
    packets = [load.contributions(worker, first) for worker in range(load.workers)] + [load.results(first)]
    shape = load.window, FRAME_HEADER_BYTES
    headers = [np.broadcast_to(frame_header(n + 1, load.packet_bytes), shape) for n in range(len(packets))]
    data = np.concatenate([np.hstack(pair) for pair in zip(headers, packets, strict=True)])
    ports = np.repeat(np.arange(1, len(packets) + 1, dtype=np.int32), load.window)
    return Frames(data, np.full(len(data), data.shape[1], np.int32), ports)


def _packets(load: Load, frames: Frames) -> Batch:
    return np.ascontiguousarray(frames.data[:, FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + load.packet_bytes])


def _load(address: str, lanes: int, workers: int, window: int) -> Load:
    """Load the pipeline into a switch, admit a job, and return the job's load."""
    job = JobDescription.model_validate(
        {
            "job": {"id": 1, "workers": workers},
            "switch": {"p4runtime": address, "pipeline_lanes": lanes, "age_limit_ms": _AGE_LIMIT_MS},
            "ports": {"server": workers + 1, "workers": list(range(1, workers + 1))},
        }
    )
    try:
        with JobController() as jobs:
            # Ports without a secret: the load's hosts send hellos without a proof.
            generation = int(jobs.admit_job(job, free=False, secret="")["generation"])
    except ControlError as error:
        raise TopologyError(str(error)) from error
    return Load.random(workers=workers, window=window, lanes=lanes, generation=generation)


@contextmanager
def _softswitch(*options: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Run `peelsum switch run` during the body; yield its announcement, and its process's id."""
    switch, listening = Child.start_ready("switch", "switch", "run", "--p4runtime", "127.0.0.1:0", *options)
    try:
        yield listening, switch.pid
    finally:
        switch.stop()


#: measure(lanes, workers, seconds) returns figures.
Measure = Callable[[int, int, float], dict[str, Any]]
MEASURES: dict[str, Measure] = {
    "memory": in_memory,
    "udp": over_udp,
    "xdp": partial(over_interfaces, method="xdp"),
    "packet": partial(over_interfaces, method="packet"),
    "bmv2": bmv2_over_veth,
}


def measure_switches(lanes: int, workers: int, seconds: float) -> list[dict[str, Any]]:
    """Measure every switch with these lanes and workers; return the rows.

    There are no rows on interfaces if this process may not create any, and none of BMv2 if it is missing; the
    field `bmv2` of all rows has the reason. `seconds` is the duration of each row's rate measurement, and of
    its latency measurement.
    """
    cold, cached = _first_packet_seconds(lanes)
    shape = lanes, workers, seconds
    rows = [measure_switch(ports, *shape) for ports in ("memory", "udp")]
    rows[0] |= {"first_packet_cold_s": cold, "first_packet_cached_s": cached}
    try:
        rows += [measure_switch(ports, *shape) for ports in ("xdp", "packet")]
        if not bmv2.available():
            raise TopologyError("not on PATH")
        baseline = measure_switch("bmv2", *shape)
    except (TopologyError, ProcessError, OSError) as error:
        return [row | {"bmv2": str(error)} for row in rows]
    return [
        row
        | {
            "rate_to_bmv2": round(row["packets_per_s"] / baseline["packets_per_s"], 1),
            "latency_to_bmv2": row["latency_p50_us"]
            and round(row["latency_p50_us"] / baseline["latency_p50_us"], 3),
        }
        for row in (*rows, baseline)
    ]


def measure_switch(name: str, lanes: int, workers: int, seconds: float) -> dict[str, Any]:
    """Measure one switch in a separate process, whose end also ends its namespaces; return the row.

    name: "memory", "udp", "xdp" and "packet" for the softswitch, "bmv2" for BMv2 on veth.
    Raises TopologyError, or OSError if this process may not have such ports.
    """
    figures = in_process(MEASURES[name], lanes, workers, seconds)
    target, ports = ("bmv2", "packet") if name == "bmv2" else ("softswitch", name)
    return {"target": target, "ports": ports, "bmv2": "measured", **dict.fromkeys(_OPTIONAL), **figures}


def in_process(measure: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a new process; return its result."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with sigint_blocked():
            future = process.submit(measure, *args, **kwargs)
        return future.result()


def _first_packet_seconds(lanes: int) -> tuple[float, float]:
    """Return the seconds until the first packet's output, without and with compiled code on disk."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        command = [sys.executable, "-c", _FIRST_PACKET, str(lanes)]
        cold, cached = (
            # In its own process group, which Ctrl-C does not reach; `run` ends it.
            subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True, process_group=0
            ).stdout
            for _ in range(2)
        )
    return round(float(cold), 2), round(float(cached), 2)

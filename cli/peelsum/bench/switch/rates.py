"""Measure rate and latency of a switch, by the kind of switch and of its ports.

Each function sets up one switch and one load. It changes its process, so call it in a new one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from peelsum.bench.devices import cpu_s
from peelsum.bench.switch.load import ChunkLatencies, Hosts, Load, WrongSumError, drive, time_slots
from peelsum.bench.switch.load_hosts import RingHosts, UdpHosts
from peelsum.control import ControlError, JobDescription
from peelsum.control.cluster import JobController
from peelsum.processes.children import Child
from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.ports.udp import frame_header
from peelsum.softswitch.runtime.device import Device
from peelsum.switch_settings import Method
from peelsum.topology import bmv2, namespaces
from peelsum.topology.errors import TopologyError
from peelsum.wire import FRAME_HEADER_BYTES, Batch, packet_bytes

#: Chunks per batch in memory; with 4 workers and the results, it has five times as many frames.
_MEMORY_WINDOW = 256
_PORTS_WINDOW = 512
#: BMv2's queues hold 64 packets per port by default; it would drop more outstanding ones.
_BMV2_WINDOW = 64
#: Short, so that the slots of lost chunks are soon free for others.
_AGE_LIMIT_MS = 100.0
#: Seconds that a switch may take for the first chunk, even in a short measurement, on a slow machine.
_FIRST_CHUNK_S = 30.0


def in_memory(lanes: int, workers: int, seconds: float) -> dict[str, Any]:
    """Measure the softswitch without ports: repeat the same batch of contributions and results."""
    device = Device()
    server = serve(device, "127.0.0.1:0")
    try:
        load = _load(server.address, lanes, workers, _MEMORY_WINDOW)
        if device.switch is None:
            raise TopologyError("switch: has no pipeline after one was loaded; see its log")
        latencies = _replay_chunks(device.switch, load, seconds)
        return _figures(latencies, _replay_batch(device.switch, load, seconds), 0)
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
    with bmv2.running(switch_ends) as address:
        load = _load(address, lanes, workers, _BMV2_WINDOW)
        with RingHosts(host_ends, workers, packet_bytes(lanes), "packet") as hosts:
            return _measure(load, hosts, seconds)


def _add_wires(workers: int) -> tuple[dict[int, str], dict[int, str]]:
    """Make virtual Ethernet pairs in a new namespace; return the switch's and the hosts' ends, by port."""
    namespaces.enter_own_namespace()
    ports = _ports(workers)
    for port in ports:
        namespaces.add_wire(f"switch{port}", f"host{port}")
    return {port: f"switch{port}" for port in ports}, {port: f"host{port}" for port in ports}


def _ports(workers: int) -> range:
    """Return the switch's ports: workers behind ports 1 to n, the server behind port n + 1."""
    return range(1, workers + 2)


def _measure(load: Load, hosts: Hosts, seconds: float, pid: int | None = None) -> dict[str, Any]:
    """Measure latencies, then the rate. pid: the switch's process, whose processor time is measured."""
    latencies = time_slots(load, hosts, seconds, time.perf_counter, first_within=_FIRST_CHUNK_S)
    if not latencies.sum_us.size:
        waited_s = max(seconds, _FIRST_CHUNK_S)
        raise TopologyError(
            f"switch: none of {latencies.lost} chunks came back in {waited_s:g} s; is it running?"
        )
    cpu_started = 0.0 if pid is None else cpu_s(pid)
    result = drive(load, hosts, seconds, time.perf_counter, first_within=_FIRST_CHUNK_S)
    contributions = result.chunks * load.workers
    figures = _figures(latencies, contributions / result.seconds, result.lost)
    if pid is not None:
        figures["packets_per_cpu_s"] = round(contributions / (cpu_s(pid) - cpu_started))
    return figures


def _figures(latencies: ChunkLatencies, packets_per_s: float, lost: int) -> dict[str, Any]:
    """Return a row's figures. lost: chunks lost under load."""
    p50, p99 = np.percentile(latencies.sum_us, (50, 99)).tolist()
    return {
        "packets_per_s": round(packets_per_s),
        "latency_p50_us": round(p50, 1),
        "latency_p99_us": round(p99, 1),
        "slots_timed": len(latencies.sum_us),
        "lost_chunks": lost,
    }


def _replay_batch(switch: Switch, load: Load, seconds: float) -> float:
    """Return contributions per second.

    The batch's results free the slots, so the switch accepts the same batch again.
    """
    batch = _batch(load)
    _check_batch(load, switch.process(batch, 0))
    rounds, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        switch.process(batch, int(elapsed * 1e6))
        rounds += 1
    return rounds * load.window * load.workers / elapsed


def _replay_chunks(switch: Switch, load: Load, seconds: float) -> ChunkLatencies:
    """Process the batch's frames one per call, chunk by chunk; time the call of the last contribution."""
    batch, latencies = _batch(load), []
    frames = [
        Frames(batch.data[i : i + 1], batch.length[i : i + 1], batch.port[i : i + 1])
        for i in range(len(batch))
    ]
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        now_us = int(elapsed * 1e6)
        for chunk in range(load.window):
            *contributions, last, result = frames[chunk :: load.window]
            for frame in contributions:
                switch.process(frame, now_us)
            sent = time.perf_counter()
            output = switch.process(last, now_us)
            latencies.append(time.perf_counter() - sent)
            load.check(_packets(load, output))
            switch.process(result, now_us)
    return ChunkLatencies(np.array(latencies) * 1e6, 0)


def _batch(load: Load) -> Frames:
    """Return all contributions and results of a window as frames, worker by worker."""
    packets = [load.contributions(worker) for worker in range(load.workers)] + [load.results()]
    size = packets[0].shape[1]
    data = np.concatenate(
        [
            np.hstack([np.broadcast_to(frame_header(port, size), (load.window, FRAME_HEADER_BYTES)), batch])
            for port, batch in zip(_ports(load.workers), packets, strict=True)
        ]
    )
    ports = np.repeat(np.array(_ports(load.workers), np.int32), load.window)
    return Frames(data, np.full(len(data), data.shape[1], np.int32), ports)


def _check_batch(load: Load, output: Frames) -> None:
    """Raise WrongSumError unless each chunk's sum was sent to the server, and its result to every worker."""
    sent = np.bincount(output.port, minlength=load.workers + 2)[1:]
    if (sent != load.window).any():
        raise WrongSumError(f"frames sent by port: {sent.tolist()} instead of {load.window} each")
    load.check(_packets(load, output))


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
    command = ("switch", "run", "--p4runtime", "127.0.0.1:0", *options, "--json", "--child")
    switch = Child.peelsum("switch", *command)
    try:
        yield switch.ready(), switch.pid
    finally:
        switch.stop()

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
from peelsum.bench.switch.load import Hosts, Load, Timed, WrongSumError, drive, time_slots
from peelsum.bench.switch.load_hosts import RawHosts, RingHosts, UdpHosts
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
_MEMORY_CHUNKS = 256
_UDP_WINDOW = 512
#: BMv2's queues hold 64 packets per port by default; it would drop more outstanding ones.
_BMV2_WINDOW = 64
#: Short, so that the slots of lost chunks are soon free for others.
_AGE_LIMIT_MS = 100.0
#: Seconds that a switch may take for the first chunk, even in a short measurement, on a slow machine.
_FIRST_CHUNK_S = 30.0


def in_memory(lanes: int, workers: int, seconds: float) -> dict[str, Any]:
    """Measure the softswitch alone, with the same batch of contributions and results repeated."""
    device = Device()
    server = serve(device, "127.0.0.1:0")
    try:
        generation = _admit(server.address, lanes, workers)
        load = Load.random(workers=workers, window=_MEMORY_CHUNKS, lanes=lanes, generation=generation)
        if device.switch is None:
            raise TopologyError("switch: has no pipeline after one was loaded; see its log")
        timed = _replay_one_by_one(device.switch, load, seconds)
        return _rate(timed, _replay(device.switch, load, seconds), 0)
    finally:
        server.stop()
        device.close()


def over_udp(lanes: int, workers: int, seconds: float) -> dict[str, Any]:
    """Measure the softswitch in a separate process; this process plays all hosts behind its UDP ports."""
    with _switch("--ports", str(workers + 1)) as (at, pid):
        generation = _admit(f"{at['host']}:{at['grpc_port']}", lanes, workers)
        load = Load.random(workers=workers, window=_UDP_WINDOW, lanes=lanes, generation=generation)
        udp_ports = {int(port): udp for port, udp in at["udp_ports"].items()}
        with UdpHosts(at["host"], udp_ports, workers, packet_bytes(lanes)) as hosts:
            timed = _timed(load, hosts, seconds)
            return _driven(load, hosts, seconds, timed, pid)


def over_interfaces(lanes: int, workers: int, seconds: float, method: Method) -> dict[str, Any]:
    """Measure the softswitch on virtual Ethernet pairs; this process plays all hosts, by the same rings."""
    switch_ends, host_ends = _wires(workers)
    interfaces = (f"--interface={port}@{name}" for port, name in switch_ends.items())
    with _switch(*interfaces, "--ports-by", method) as (at, pid):
        generation = _admit(f"{at['host']}:{at['grpc_port']}", lanes, workers)
        load = Load.random(workers=workers, window=_UDP_WINDOW, lanes=lanes, generation=generation)
        with RingHosts(host_ends, workers, packet_bytes(lanes), method) as hosts:
            timed = _timed(load, hosts, seconds)
            return _driven(load, hosts, seconds, timed, pid)


def bmv2_over_veth(lanes: int, workers: int, seconds: float) -> dict[str, Any]:
    """Measure BMv2 on virtual Ethernet pairs; this process plays all hosts at their other ends."""
    switch_ends, host_ends = _wires(workers)
    with bmv2.running(switch_ends) as address:
        generation = _admit(address, lanes, workers)
        load = Load.random(workers=workers, window=_BMV2_WINDOW, lanes=lanes, generation=generation)
        with RawHosts(host_ends, workers, packet_bytes(lanes), one_by_one=True) as hosts:
            timed = _timed(load, hosts, seconds)
        with RawHosts(host_ends, workers, packet_bytes(lanes)) as hosts:
            return _driven(load, hosts, seconds, timed)


def _wires(workers: int) -> tuple[dict[int, str], dict[int, str]]:
    """Make virtual Ethernet pairs in a new namespace; return the switch's and the hosts' ends, by port."""
    namespaces.enter_own_namespace()
    for port in _ports(workers):
        namespaces.add_wire(f"switch{port}", f"host{port}")
    switch_ends, host_ends = ({port: f"{at}{port}" for port in _ports(workers)} for at in ("switch", "host"))
    return switch_ends, host_ends


def _ports(workers: int) -> range:
    """Return the ports: workers behind ports 1 to n, the server behind port n + 1."""
    return range(1, workers + 2)


def _timed(load: Load, hosts: Hosts, seconds: float) -> Timed:
    timed = time_slots(load, hosts, seconds, time.perf_counter, first_within=_FIRST_CHUNK_S)
    if not timed.sum_us.size:
        waited = max(seconds, _FIRST_CHUNK_S)
        raise TopologyError(f"switch: none of {timed.lost} chunks came back in {waited:g} s; is it running?")
    return timed


def _driven(load: Load, hosts: Hosts, seconds: float, timed: Timed, pid: int | None = None) -> dict[str, Any]:
    """Drive a load. pid: of the switch's process, whose processor time is counted."""
    began = cpu_s(pid) if pid is not None else 0.0
    driven = drive(load, hosts, seconds, time.perf_counter, first_within=_FIRST_CHUNK_S)
    contributions = driven.chunks * load.workers
    figures = _rate(timed, contributions / driven.seconds, driven.lost)
    if pid is not None:
        figures["packets_per_cpu_s"] = round(contributions / (cpu_s(pid) - began))
    return figures


def _rate(timed: Timed, packets_per_s: float, lost: int) -> dict[str, Any]:
    p50, p99 = np.percentile(timed.sum_us, (50, 99)).tolist()
    return {
        "packets_per_s": round(packets_per_s),
        "latency_p50_us": round(p50, 1),
        "latency_p99_us": round(p99, 1),
        "slots_timed": len(timed.sum_us),
        "lost_chunks": lost,
    }


def _replay(switch: Switch, load: Load, seconds: float) -> float:
    """Return contributions per second.

    The batch's results free the slots, so the switch accepts the same batch again.
    """
    batch = _one_batch(load)
    _check_batch(load, switch.process(batch, 0))
    rounds, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        switch.process(batch, int(elapsed * 1e6))
        rounds += 1
    return rounds * load.window * load.workers / elapsed


def _replay_one_by_one(switch: Switch, load: Load, seconds: float) -> Timed:
    """Process the same frames one per call, chunk by chunk; time the call of the last contribution."""
    batch, taken = _one_batch(load), []
    singles = [
        Frames(batch.data[i : i + 1], batch.length[i : i + 1], batch.port[i : i + 1])
        for i in range(len(batch))
    ]
    started = time.perf_counter()
    while (now := time.perf_counter() - started) < seconds:
        for chunk in range(load.window):
            *before, last, result = singles[chunk :: load.window]
            for frame in before:
                switch.process(frame, int(now * 1e6))
            sent = time.perf_counter()
            out = switch.process(last, int(now * 1e6))
            taken.append(time.perf_counter() - sent)
            load.check(_packets(load, out))
            switch.process(result, int(now * 1e6))
    return Timed(np.array(taken) * 1e6, 0)


def _one_batch(load: Load) -> Frames:
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


def _check_batch(load: Load, out: Frames) -> None:
    """Raise WrongSumError unless each chunk's sum left to the server, and its result to every worker."""
    leaving = np.bincount(out.port, minlength=load.workers + 2)[1:]
    if (leaving != load.window).any():
        raise WrongSumError(f"frames sent by port: {leaving.tolist()} instead of {load.window} each")
    load.check(_packets(load, out))


def _packets(load: Load, frames: Frames) -> Batch:
    return np.ascontiguousarray(frames.data[:, FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + load.packet_bytes])


def _admit(address: str, lanes: int, workers: int) -> int:
    """Load the pipeline and admit the load's job; return its generation."""
    job = JobDescription.model_validate(
        {
            "job": {"id": 1, "workers": workers},
            "switch": {"p4runtime": address, "pipeline_lanes": lanes, "age_limit_ms": _AGE_LIMIT_MS},
            "ports": {"server": workers + 1, "workers": list(range(1, workers + 1))},
        }
    )
    try:
        with JobController() as jobs:
            # Ports without a secret: hosts of a load say hello without a proof.
            return int(jobs.admit_job(job, free=False, secret="")["generation"])
    except ControlError as error:
        raise TopologyError(str(error)) from error


@contextmanager
def _switch(*options: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Run `peelsum switch run` during the body; yield what it says when it listens, and its process's id."""
    switch = Child.peelsum(
        "switch", "switch", "run", "--p4runtime", "127.0.0.1:0", *options, "--json", "--child"
    )
    try:
        yield switch.ready(), switch.pid
    finally:
        switch.stop()

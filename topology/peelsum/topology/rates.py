"""How many packets a second a switch sums, by target and by what its ports are made of.

Owns the set-up of one switch and one load per measurement. Each function takes the process it runs in for
itself: run it in a fresh one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from peelsum.control import ControlError, Controller, JobDescription
from peelsum.target import Frames, Switch
from peelsum.target.artifacts import pipeline
from peelsum.target.device import Device
from peelsum.target.p4runtime import serve
from peelsum.target.runner import Listening
from peelsum.target.runner import run as run_switch
from peelsum.target.udp import FRAME_HEADER_BYTES, frame_header
from peelsum.topology import bmv2, veth
from peelsum.topology.errors import TopologyError
from peelsum.topology.load import Driven, Load, WrongSumError, drive
from peelsum.topology.load_hosts import RawHosts, UdpHosts
from peelsum.wire import packet_bytes

WORKERS = 4
_PORTS = range(1, WORKERS + 2)
#: Chunks of one batch in memory: with its results, five times as many frames.
_MEMORY_CHUNKS = 256
_UDP_WINDOW = 512
#: BMv2's queues hold 64 packets a port by default; more under way would be dropped there.
_BMV2_WINDOW = 64
#: Short, so that chunks given up by the load soon leave their slots to others.
_AGE_LIMIT_MS = 100.0


@dataclass(frozen=True)
class Rate:
    """Contributions per second that went into complete sums, and chunks that were given up as lost."""

    packets_per_s: float
    lost_chunks: int = 0


def in_memory(lanes: int, seconds: float) -> Rate:
    """The embedded switch alone: the same batch of contributions and results, over and over."""
    device = Device()
    server = serve(device, "127.0.0.1:0")
    try:
        generation = _admit(server.address, lanes)
        load = Load.random(workers=WORKERS, window=_MEMORY_CHUNKS, lanes=lanes, generation=generation)
        if device.switch is None:
            raise TopologyError("switch: runs no pipeline after one was loaded; see its log")
        return _replay(device.switch, load, seconds)
    finally:
        server.stop()
        device.close()


def over_udp(lanes: int, seconds: float) -> Rate:
    """The embedded switch as a process of its own; this process is all the hosts behind its UDP ports."""
    with _switch_process() as at:
        generation = _admit(f"{at.host}:{at.grpc_port}", lanes)
        load = Load.random(workers=WORKERS, window=_UDP_WINDOW, lanes=lanes, generation=generation)
        with UdpHosts(at.host, at.udp_ports, WORKERS, packet_bytes(lanes)) as hosts:
            return _rate(drive(load, hosts, seconds, time.perf_counter))


def bmv2_over_veth(lanes: int, seconds: float) -> Rate:
    """BMv2 on virtual Ethernet pairs, with this process as all the hosts at their other ends."""
    veth.enter_own_namespace()
    for port in _PORTS:
        veth.add_wire(f"switch{port}", f"host{port}")
    with bmv2.running({port: f"switch{port}" for port in _PORTS}) as address:
        generation = _admit(address, lanes)
        load = Load.random(workers=WORKERS, window=_BMV2_WINDOW, lanes=lanes, generation=generation)
        with RawHosts({port: f"host{port}" for port in _PORTS}, WORKERS, packet_bytes(lanes)) as hosts:
            return _rate(drive(load, hosts, seconds, time.perf_counter))


def _rate(driven: Driven) -> Rate:
    return Rate(driven.chunks * WORKERS / driven.seconds, driven.lost)


def _replay(switch: Switch, load: Load, seconds: float) -> Rate:
    """Results free the slots, so that the same batch is new to the switch every time."""
    batch = _one_batch(load)
    _check_batch(load, switch.process(batch, 0))
    rounds, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        switch.process(batch, int(elapsed * 1e6))
        rounds += 1
    return Rate(rounds * load.window * load.workers / elapsed)


def _one_batch(load: Load) -> Frames:
    """All contributions and results of a window, worker by worker, as frames."""
    packets = [load.contributions(worker) for worker in range(load.workers)] + [load.results()]
    size = packets[0].shape[1]
    data = np.concatenate(
        [
            np.hstack([np.broadcast_to(frame_header(port, size), (load.window, FRAME_HEADER_BYTES)), batch])
            for port, batch in zip(_PORTS, packets, strict=True)
        ]
    )
    ports = np.repeat(np.array(_PORTS, np.int32), load.window)
    return Frames(data, np.full(len(data), data.shape[1], np.int32), ports)


def _check_batch(load: Load, out: Frames) -> None:
    """Every chunk's sum must have left to the server, and a copy of its result to each worker."""
    leaving = np.bincount(out.port, minlength=_PORTS.stop)[1:]
    if (leaving != load.window).any():
        raise WrongSumError(f"frames that left by port: {leaving.tolist()}, not {load.window} for each")
    load.check(np.ascontiguousarray(out.data[:, FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + load.packet_bytes]))


def _admit(address: str, lanes: int) -> int:
    """Load the pipeline and admit the load's job; its generation."""
    compiled = pipeline(lanes)
    job = JobDescription.model_validate(
        {
            "job": {"id": 1, "workers": WORKERS},
            "switch": {"p4runtime": address, "pipeline_lanes": lanes, "age_limit_ms": _AGE_LIMIT_MS},
            "ports": {"server": WORKERS + 1, "workers": list(range(1, WORKERS + 1))},
        }
    )
    try:
        with Controller.connect(address) as controller:
            controller.load_pipeline(compiled.json_path, compiled.p4info_path)
            return controller.admit(job).generation
    except ControlError as error:
        raise TopologyError(str(error)) from error


@contextmanager
def _switch_process() -> Iterator[Listening]:
    """A switch in a process of its own; ended at exit."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_be_switch, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    except EOFError:
        raise TopologyError("switch process: ended before it listened; see its message above") from None
    finally:
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGTERM)
        process.join()


def _be_switch(connection: Connection) -> None:
    run_switch(WORKERS + 1, grpc_address="127.0.0.1:0", announce=connection.send)

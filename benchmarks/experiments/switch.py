"""Rate and latency of a switch: the softswitch and BMv2, in memory and on ports, by lanes and workers.

One compiled pipeline in the softswitch, with ports in memory, over UDP, and on virtual Ethernet pairs by
AF_XDP and AF_PACKET, and in BMv2 on such pairs. They need root, and BMv2 `simple_switch_grpc` on PATH; where
one is missing, every row says so, and there are no ratios. `seconds` is the duration of each row's rate
measurement, and of its latency measurement. The first sums of every run are compared with the sums of what
was sent. A forwarder sums nothing and sends every frame back where it came from: the limit of such ports.
By AF_XDP it copies nothing: the chunk in which a frame arrived is the one that leaves. By AF_PACKET, the
kernel copies frames out of the slots in which they arrived.
"""

from __future__ import annotations

import multiprocessing
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks import Experiment, Plot, Series, Size
from peelsum.bench.devices import cpu_s
from peelsum.bench.switch.load import RingHosts
from peelsum.bench.switch.rows import measure_switches
from peelsum.compiling import compiled
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.ring_kernels import InterfaceColumn as Ring
from peelsum.softswitch.ports.ring_kernels import InterfaceRings, send_messages
from peelsum.softswitch.ports.xdp import CHUNK, RING
from peelsum.switch_settings import Method
from peelsum.topology import namespaces
from peelsum.wire import COMPILED_LANES, MAX_WORKERS, packet_bytes
from peelsum.wire.system_calls import NO_WAIT, acquire, load, publish, save, sendto

#: Frames under way, and frames sent at once.
_WINDOW, _BURST = 512, 64
_READY_S, _SILENCE_S = 60.0, 0.05
_LAST, _WORD, _USER = RING - 1, (1 << 32) - 1, np.uint32(1)


def measure(seed: int, lanes: int, workers: int, seconds: float) -> Any:
    """Measure every switch, and the forwarder."""
    methods: tuple[Method, ...] = ("xdp", "packet")
    forwarders = {f"{method}_forwarder": partial(forwarded, method=method) for method in methods}
    return measure_switches(lanes, workers, seconds, forwarders)


def forwarded(lanes: int, workers: int, seconds: float, method: Method) -> dict[str, Any]:
    """Measure a forwarder on a virtual Ethernet pair; this process plays the host at its other end.

    Of the frames that a switch receives, one in `workers` + 1 is a result; the others are the contributions
    that are returned.
    """
    namespaces.enter_own_namespace()
    namespaces.add_wire("switch1", "host1")
    with (
        forwarding("switch1", method) as pid,
        RingHosts({1: "host1"}, 1, packet_bytes(lanes), method) as host,
    ):
        burst = np.zeros((_BURST, packet_bytes(lanes)), np.uint8)
        came, sent, ends_at, began = 0, 0, time.perf_counter() + seconds, cpu_s(pid)
        started = time.perf_counter()
        while (now := time.perf_counter()) < ends_at:
            while sent - came <= _WINDOW - _BURST:
                host.send(0, burst)
                sent += _BURST
            if not (got := host.receive_results(1, _SILENCE_S)):
                sent = came  # all are lost
            came += got
        share = workers / (workers + 1)
        return {
            "packets_per_s": round(came * share / (now - started)),
            "packets_per_cpu_s": round(came * share / (cpu_s(pid) - began)),
        }


@contextmanager
def forwarding(name: str, method: Method) -> Iterator[int]:
    """Forward an interface's frames in a separate process during the body; the value is its id."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_forward, args=(sender, name, method), daemon=True)
    process.start()
    try:
        if not receiver.poll(_READY_S):
            raise TimeoutError("forwarder: does not start")
        receiver.recv()
        yield process.pid or 0
    finally:
        process.kill()
        process.join()


def _forward(connection: Connection, name: str, method: Method) -> None:
    ports = InterfacePorts({1: name}, method=method)
    port = ports.ports[1]
    if port.xdp is not None:
        port.xdp.take(every_frame=True)
    echo = _by_chunks if port.xdp is not None else _by_slots
    echo(ports.wires)
    connection.send("ready")
    while True:
        select.select([port.socket], [], [])
        while echo(ports.wires):
            pass


@compiled
def _by_chunks(wires: InterfaceRings) -> int:
    """Send chunks that have arrived, and give back those that have left; return how many arrived."""
    state = wires.state[0]
    count = (np.int64(acquire(state[Ring.RX_PRODUCER])) - state[Ring.TAKEN]) & _WORD
    for i in range(count):
        descriptor = state[Ring.RX] + 16 * ((state[Ring.TAKEN] + i) & _LAST)
        other = state[Ring.TX] + 16 * ((state[Ring.PUT] + i) & _LAST)
        for word in range(4):
            save(other, word, load(descriptor, word))
    state[Ring.TAKEN] += count
    state[Ring.PUT] += count
    publish(state[Ring.RX_CONSUMER], np.uint32(state[Ring.TAKEN]))
    publish(state[Ring.TX_PRODUCER], np.uint32(state[Ring.PUT]))
    while np.int64(acquire(state[Ring.TX_CONSUMER])) != state[Ring.PUT] & _WORD:
        sendto(state[Ring.DESCRIPTOR], 0, 0, NO_WAIT, 0, 0)
    done = (np.int64(acquire(state[Ring.COMPLETION_PRODUCER])) - state[Ring.RECLAIMED]) & _WORD
    for i in range(done):
        at = np.int64(load(state[Ring.DONE] + 8 * ((state[Ring.RECLAIMED] + i) & _LAST), 0))
        save(state[Ring.FILL] + 8 * ((state[Ring.FILLED] + i) & _LAST), 0, np.uint32(at - at % CHUNK))
    state[Ring.RECLAIMED] += done
    state[Ring.FILLED] += done
    publish(state[Ring.COMPLETION_CONSUMER], np.uint32(state[Ring.RECLAIMED]))
    publish(state[Ring.FILL_PRODUCER], np.uint32(state[Ring.FILLED]))
    return int(count)


@compiled
def _by_slots(wires: InterfaceRings) -> int:
    """Send the frames that have arrived, and give their slots back; return their number."""
    state, count = wires.state[0], 0
    while count < wires.parts.shape[0]:
        place = (state[Ring.TAKEN] + count) % state[Ring.SLOTS]
        slot = state[Ring.MEMORY] + state[Ring.SLOT] * place
        if not acquire(slot) & _USER:
            break
        wires.parts[count, 0] = slot + np.int64(load(slot, 3) & np.uint32(0xFFFF))
        wires.parts[count, 1] = load(slot, 2)
        count += 1
    if count:
        send_messages(wires, 0, count)
    for i in range(count):
        place = (state[Ring.TAKEN] + i) % state[Ring.SLOTS]
        publish(state[Ring.MEMORY] + state[Ring.SLOT] * place, np.uint32(0))
    state[Ring.TAKEN] = (state[Ring.TAKEN] + count) % state[Ring.SLOTS]
    return count


RATES: dict[str, Any] = {
    "y": "packets_per_s",
    "lines": "target ports",
    "log": "xy",
    "ylabel": "Contributions per second, of complete sums",
    "names": {
        "embedded, memory": Series("softswitch, in memory", "teal", ours=True),
        "embedded, udp": Series("softswitch, UDP", "blue", ours=True),
        "bmv2, veth": Series("BMv2, veth", "orange"),
    },
}


def by_udp(medians: Any) -> str:
    """Return the least rates over ports, and how many times BMv2's the softswitch's are."""
    ours, bmv2 = medians.of("embedded, udp"), medians.of("bmv2, veth")
    ratios = [rate / slower for rate, slower in zip(ours, bmv2, strict=True)]
    return f"""By UDP the softswitch takes {min(ours) / 1e6:.1f} million contributions a second or more,
        {min(ratios):.0f} to {max(ratios):.0f} times as many as BMv2 from virtual Ethernet"""


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "target": "the switch: `embedded` for the softswitch, `bmv2`, or a plain `forwarder`",
        "ports": "what its ports are: `memory`, `udp`, or on veth `xdp` and `packet`",
        "packets_per_s": "contributions per second that went into complete sums",
        "packets_per_cpu_s": "the same per second of the switch process's processor time",
        "latency_p50_us": "median time from a chunk's last contribution in to its sum out",
        "latency_p99_us": "99th percentile of the same time",
        "slots_timed": "chunks whose latency was measured, one at a time",
        "bmv2": "`measured`, or the reason why BMv2 was not",
        "rate_to_bmv2": "`packets_per_s` over BMv2's with as many lanes and workers",
        "latency_to_bmv2": "`latency_p50_us` over BMv2's",
        "first_packet_cold_s": "seconds from import to the first packet's output, without compiled code",
        "first_packet_cached_s": "the same with compiled code on disk",
        "lost_chunks": "chunks that the load gave up after a silence",
    },
    keys=("target", "ports"),
    sizes={
        "quick": Size([{"lanes": 32, "workers": 2, "seconds": 0.1}], 1),
        "usual": Size([{"lanes": (32, 64, 128, 256), "workers": 4, "seconds": 3.0}], 1),
    },
    plots=[
        Plot(
            "by_lanes",
            x="lanes",
            where={"workers": 4},
            finding=by_udp,
            setting="Four workers, one process that plays all hosts. Measured.",
            xlabel="Lanes of a packet",
            **RATES,
        ),
        Plot(
            "by_workers",
            x="workers",
            where={"lanes": 256},
            finding=by_udp,
            setting="Packets of 256 lanes, one process that plays all hosts. Measured.",
            xlabel="Workers",
            **RATES,
        ),
    ],
    ranges={"seconds": (0.1, 3600), "workers": (1, MAX_WORKERS)},
    choices={"lanes": COMPILED_LANES},
)

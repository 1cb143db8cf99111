"""A plain forwarder, the limit of a switch on interfaces: every frame leaves by the interface it came by.

By AF_XDP it copies nothing: the chunk in which a frame arrived is the one that leaves. By AF_PACKET, the
kernel copies frames out of the slots in which they arrived.
"""

from __future__ import annotations

import multiprocessing
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from peelsum.bench.devices import cpu_s
from peelsum.bench.switch.load_hosts import RingHosts
from peelsum.compiling import compiled
from peelsum.softswitch.ports.interfaces import InterfacePorts, Method
from peelsum.softswitch.ports.ring_kernels import Column, Wires, send_messages
from peelsum.softswitch.ports.xdp import CHUNK, RING
from peelsum.topology import veth
from peelsum.wire import packet_bytes
from peelsum.wire.system_calls import NO_WAIT, acquire, load, publish, save, sendto

#: Frames under way, and frames sent at once.
_WINDOW, _BURST = 512, 64
_READY_S, _SILENCE_S = 60.0, 0.05
_LAST, _WORD, _USER = RING - 1, (1 << 32) - 1, np.uint32(1)


def forwarded(lanes: int, workers: int, seconds: float, method: Method) -> dict[str, Any]:
    """Measure a forwarder on a virtual Ethernet pair; this process plays the host at its other end.

    Of the frames that a switch receives, one in `workers` + 1 is a result; the others are the contributions
    that are returned.
    """
    veth.enter_own_namespace()
    veth.add_wire("switch1", "host1")
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
    ours, theirs = context.Pipe()
    process = context.Process(target=_forward, args=(theirs, name, method), daemon=True)
    process.start()
    try:
        if not ours.poll(_READY_S):
            raise TimeoutError("forwarder: does not start")
        ours.recv()
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
def _by_chunks(wires: Wires) -> int:
    """Send chunks that have arrived, and give back those that have left; return how many arrived."""
    state = wires.state[0]
    count = (np.int64(acquire(state[Column.RX_PRODUCER])) - state[Column.TAKEN]) & _WORD
    for i in range(count):
        one = state[Column.RX] + 16 * ((state[Column.TAKEN] + i) & _LAST)
        other = state[Column.TX] + 16 * ((state[Column.PUT] + i) & _LAST)
        for word in range(4):
            save(other, word, load(one, word))
    state[Column.TAKEN] += count
    state[Column.PUT] += count
    publish(state[Column.RX_CONSUMER], np.uint32(state[Column.TAKEN]))
    publish(state[Column.TX_PRODUCER], np.uint32(state[Column.PUT]))
    while np.int64(acquire(state[Column.TX_CONSUMER])) != state[Column.PUT] & _WORD:
        sendto(state[Column.DESCRIPTOR], 0, 0, NO_WAIT, 0, 0)
    done = (np.int64(acquire(state[Column.DONE_PRODUCER])) - state[Column.REAPED]) & _WORD
    for i in range(done):
        at = np.int64(load(state[Column.DONE] + 8 * ((state[Column.REAPED] + i) & _LAST), 0))
        save(state[Column.FILL] + 8 * ((state[Column.FILLED] + i) & _LAST), 0, np.uint32(at - at % CHUNK))
    state[Column.REAPED] += done
    state[Column.FILLED] += done
    publish(state[Column.DONE_CONSUMER], np.uint32(state[Column.REAPED]))
    publish(state[Column.FILL_PRODUCER], np.uint32(state[Column.FILLED]))
    return int(count)


@compiled
def _by_slots(wires: Wires) -> int:
    """Send the frames that have arrived, and give their slots back; return their number."""
    state, count = wires.state[0], 0
    while count < wires.parts.shape[0]:
        place = (state[Column.TAKEN] + count) % state[Column.SLOTS]
        slot = state[Column.MEMORY] + state[Column.SLOT] * place
        if not acquire(slot) & _USER:
            break
        wires.parts[count, 0] = slot + np.int64(load(slot, 3) & np.uint32(0xFFFF))
        wires.parts[count, 1] = load(slot, 2)
        count += 1
    if count:
        send_messages(wires, 0, count)
    for i in range(count):
        place = (state[Column.TAKEN] + i) % state[Column.SLOTS]
        publish(state[Column.MEMORY] + state[Column.SLOT] * place, np.uint32(0))
    state[Column.TAKEN] = (state[Column.TAKEN] + count) % state[Column.SLOTS]
    return count

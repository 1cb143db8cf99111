"""A relay between network interfaces: frames of any protocol, at the rate and delay of `Links`.

It stands for a switch on kernels without netem. `RelayedLan` runs it as a process in the namespace where the
links to the workers meet. Worker w has the MAC address of `mac(w)`.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

import numpy as np
from numpy.typing import NDArray

from peelsum.bench.train.links import ShapedLan
from peelsum.softswitch import Frames
from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.softswitch.ports.links import Links
from peelsum.softswitch.ports.pacing import Pacer
from peelsum.softswitch.ports.schedule import Change, LinkSchedule, LinkState
from peelsum.softswitch.runtime.queues import TICK_SHIFT
from peelsum.topology import Child, TopologyError, say
from peelsum.topology.namespaces import HOST_INTERFACE, inside

#: Frames that may wait at a port. TCP fills any queue, and this one must lose nothing.
_QUEUE = 1 << 14
_BATCH = 4096
_MTU = 1500
_OFFLOADS_OFF = "from peelsum.softswitch.ports.interfaces import without_offloads; without_offloads({name!r})"
#: Settings of a namespace: connections that were idle send as fast as before, with room for a link's bytes.
_SETTINGS = {
    "tcp_slow_start_after_idle": "0",
    "tcp_rmem": "4096 4194304 16777216",
    "tcp_wmem": "4096 4194304 16777216",
    "tcp_no_metrics_save": "1",
}


def mac(worker: int) -> str:
    """Return a worker's MAC address."""
    return f"02:00:00:00:00:{worker + 1:02x}"


class Relay:
    """Forwards frames by the last byte of their destination, and paces each port.

    A port sends one frame after the other at its rate. All ports have the same link.
    """

    def __init__(self, ports: InterfacePorts, schedule: LinkSchedule) -> None:
        self._ports, self._numbers = ports, sorted(ports.ports)
        links = Links(self._numbers, schedule=schedule, queue_limit=_QUEUE)
        pacer = links.pacer(ports.send)
        assert pacer is not None
        self._links, self._pacer, self._schedule = links, pacer, schedule
        self._free_at = dict.fromkeys(self._numbers, 0)
        self._began_us: int | None = None

    def set(self, schedule: LinkSchedule) -> None:
        """Follow another schedule from the next frame on."""
        self._links = Links(self._numbers, schedule=schedule, queue_limit=_QUEUE)
        self._links.pacer(self._ports.send)
        self._schedule, self._began_us = schedule, None

    def pacer(self) -> Pacer:
        """Return the pacer that holds the frames."""
        return self._pacer

    def forward(self, frames: Frames, now_us: int) -> None:
        """Hold frames for the ports that they go to."""
        if self._began_us is None:
            self._began_us = now_us
        self._links.follow(self._pacer, now_us)
        for port in self._numbers:
            to = frames.data[:, 5]
            rows = np.flatnonzero((to == port) | ((to == 0xFF) & (frames.port != port)))
            if rows.size:
                out = frames.at(rows)
                leave = self._leave(port, out, now_us)
                self._pacer.hold(Frames(out.data, out.length, np.full_like(out.port, port), leave), now_us)

    def _leave(self, port: int, frames: Frames, now_us: int) -> NDArray[np.uint64]:
        """Return when the last bit of each frame leaves, in ticks: uint64[n]."""
        assert self._began_us is not None
        state = self._schedule.at((now_us - self._began_us) / 1e6, port)
        assert state.mbit is not None
        ticks = np.cumsum(frames.length.astype(np.float64)) * (8 / state.mbit) * 2**TICK_SHIFT
        start = max(self._free_at[port], now_us << TICK_SHIFT)
        leave: NDArray[np.uint64] = (start + ticks.astype(np.int64)).view(np.uint64)
        self._free_at[port] = int(leave[-1])
        return leave


def constant(mbit: float, delay_ms: float) -> LinkSchedule:
    """Return a schedule of a link that does not change."""
    return LinkSchedule([Change(0.0, LinkState(mbit, delay_ms))])


class RelayedLan(ShapedLan):
    """A `ShapedLan` whose hub is a `Relay` instead of a bridge and token buckets."""

    _relay: Child | None = None

    def shape(self, gbps: float, latency_s: float = 0.0) -> None:
        """Let every link send at `gbps` Gbit/s, and delay every frame by `latency_s`."""
        if self._relay is None:
            command = [sys.executable, "-m", "peelsum.bench.methods.relay", str(self._workers)]
            self._relay = Child("relay", inside(self._hub, *command))
            self._stack.callback(self._relay.stop)
            self._relay.ready()
        self._relay.tell(mbit=1e3 * gbps, delay_ms=1e3 * latency_s)
        if self._relay.next_line(10.0) is None:
            raise TopologyError("relay: ended early; run again, it may have been stopped")

    def _join_hub(self) -> None:
        """Leave the links' ends in the hub to the relay."""

    def _attach_host(self, worker: int, pid: int) -> None:
        self._wire(worker, pid, _MTU, "address", mac(worker))
        self._run(pid, sys.executable, "-c", _OFFLOADS_OFF.format(name=HOST_INTERFACE))
        for setting, value in _SETTINGS.items():
            write = f"echo {value} > /proc/sys/net/ipv4/{setting}"
            self._run(pid, "sh", "-c", write)


def main() -> None:
    """Run the process; its argument is the number of workers.

    A line {mbit, delay_ms} sets the links.
    """
    workers = int(sys.argv[1])
    ports = InterfacePorts({worker + 1: f"w{worker}" for worker in range(workers)}, batch=_BATCH)
    ports.resize(0)  # frames of any kind
    relay = Relay(ports, constant(1e4, 0.0))
    numbers = {port.socket.fileno(): number for number, port in ports.ports.items()}
    started = time.monotonic_ns()

    def now_us() -> int:
        return (time.monotonic_ns() - started) // 1000

    say(ready=True)
    while True:
        due = relay.pacer().due_in(now_us())
        ready, _, _ = select.select([0, *numbers], [], [], due)
        if 0 in ready:
            line = os.read(0, 4096)
            if not line:
                return
            relay.set(constant(**json.loads(line)))
            say(set=True)
        frames = ports.receive([numbers[one] for one in ready if one])
        if len(frames):
            relay.forward(frames, now_us())
        relay.pacer().release(now_us())


if __name__ == "__main__":
    main()

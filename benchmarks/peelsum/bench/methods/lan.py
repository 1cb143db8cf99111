"""Namespaces of workers behind a relay, whose links have a rate and a latency on any kernel."""

from __future__ import annotations

import sys

from peelsum.bench.methods.relay import mac
from peelsum.bench.train.links import ShapedLan
from peelsum.topology import Child, TopologyError
from peelsum.topology.namespaces import HOST_INTERFACE, inside

_MTU = 1500
_OFFLOADS_OFF = "from peelsum.softswitch.ports.interfaces import without_offloads; without_offloads({name!r})"
#: Settings of a namespace: connections that were idle send as fast as before, with room for a link's bytes.
_SETTINGS = {
    "tcp_slow_start_after_idle": "0",
    "tcp_rmem": "4096 4194304 16777216",
    "tcp_wmem": "4096 4194304 16777216",
    "tcp_no_metrics_save": "1",
}


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

"""A local network for gloo: a namespace for each worker, behind links of a rate, by token buckets.

Needs root. The namespaces have no names, and go with the processes that hold them.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from typing import Self

from peelsum.topology import TopologyError
from peelsum.topology.namespaces import HOST_INTERFACE, hold_namespace, inside

_TOOLS = ("ip", "tc", "nsenter")
_MTU = 9000
#: What a bucket holds besides a millisecond's worth: the largest segment that the kernel hands over.
_LARGEST_BYTES = 1 << 16
#: What may wait for its turn, in milliseconds of the rate.
_QUEUE_MS = 50


class ShapedLan:
    """`workers` namespaces, joined by a bridge in another. Raises TopologyError if not permitted."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._stack = ExitStack()
        self._pids: list[int] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the namespaces."""
        self._stack.close()

    def prefix(self, worker: int) -> list[str]:
        """What a worker's command begins with; it then has HOST_INTERFACE."""
        return inside(self._pids[worker])

    def shape(self, gbps: float) -> None:
        """Have every link, each way, carry `gbps` Gbit/s from now on."""
        rate_bit = int(gbps * 1e9)
        burst = str(_LARGEST_BYTES + rate_bit // 8000)
        bucket = ["tbf", "rate", f"{rate_bit}bit", "burst", burst, "latency", f"{_QUEUE_MS}ms"]
        for worker, pid in enumerate(self._pids):
            self._run(self._hub, "tc", "qdisc", "replace", "dev", f"w{worker}", "root", *bucket)
            self._run(pid, "tc", "qdisc", "replace", "dev", HOST_INTERFACE, "root", *bucket)

    def _start(self) -> None:
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing:
            raise TopologyError(f"{missing[0]}: not found on PATH; install iproute2 and util-linux")
        self._hub = self._hold()
        self._pids = [self._hold() for _ in range(self._workers)]
        self._run(self._hub, "ip", "link", "add", "bridge", "type", "bridge")
        self._run(self._hub, "ip", "link", "set", "bridge", "mtu", str(_MTU), "up")
        for worker, pid in enumerate(self._pids):
            self._plug_in(worker, pid)

    def _plug_in(self, worker: int, pid: int) -> None:
        name, mtu = f"w{worker}", str(_MTU)
        pair = ["type", "veth", "peer", "name", HOST_INTERFACE, "netns", str(pid)]
        self._run(self._hub, "ip", "link", "add", name, *pair)
        self._run(self._hub, "ip", "link", "set", name, "mtu", mtu, "master", "bridge", "up")
        self._run(pid, "ip", "address", "add", f"10.0.0.{worker + 1}/24", "dev", HOST_INTERFACE)
        self._run(pid, "ip", "link", "set", HOST_INTERFACE, "mtu", mtu, "up")
        self._run(pid, "ip", "link", "set", "lo", "up")

    def _hold(self) -> int:
        holder = hold_namespace()
        self._stack.callback(holder.wait)
        self._stack.callback(holder.kill)
        return holder.pid

    @staticmethod
    def _run(pid: int, *command: str) -> None:
        done = subprocess.run(inside(pid, *command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise TopologyError(f"{' '.join(command)}: {done.stderr.strip()}; run as root")

"""A local network for gloo: a namespace for each worker, and links whose rate is limited by token buckets.

Needs root. The namespaces are anonymous, and end with the processes that hold them.
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
#: A token bucket holds a millisecond of the rate, and the largest segment that the kernel sends at once.
_SEGMENT_BYTES = 1 << 16
#: Length of a link's queue, in milliseconds of the rate.
_QUEUE_MS = 50


class ShapedLan:
    """`workers` namespaces, connected by a bridge in another one.

    Entering it raises TopologyError if a tool is missing or the process lacks permission.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._stack = ExitStack()
        self._pids: list[int] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def prefix(self, worker: int) -> list[str]:
        """Return what to put before a command to run it in a worker's namespace, which has HOST_INTERFACE."""
        return inside(self._pids[worker])

    def shape(self, gbps: float) -> None:
        """Limit every link to `gbps` Gbit/s in each direction."""
        rate_bit = int(gbps * 1e9)
        burst = str(_SEGMENT_BYTES + rate_bit // 8000)
        bucket = ["tbf", "rate", f"{rate_bit}bit", "burst", burst, "latency", f"{_QUEUE_MS}ms"]
        for worker, pid in enumerate(self._pids):
            self._run(self._bridge, "tc", "qdisc", "replace", "dev", f"w{worker}", "root", *bucket)
            self._run(pid, "tc", "qdisc", "replace", "dev", HOST_INTERFACE, "root", *bucket)

    def _start(self) -> None:
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing:
            raise TopologyError(f"{missing[0]}: not found on PATH; install iproute2 and util-linux")
        self._bridge = self._hold_namespace()
        self._pids = [self._hold_namespace() for _ in range(self._workers)]
        self._run(self._bridge, "ip", "link", "add", "bridge", "type", "bridge")
        self._run(self._bridge, "ip", "link", "set", "bridge", "mtu", str(_MTU), "up")
        for worker, pid in enumerate(self._pids):
            self._connect(worker, pid)

    def _connect(self, worker: int, pid: int) -> None:
        """Connect a worker's HOST_INTERFACE to the bridge."""
        name = f"w{worker}"
        ends = ["type", "veth", "peer", "name", HOST_INTERFACE, "netns", str(pid)]
        self._run(self._bridge, "ip", "link", "add", name, *ends)
        self._run(self._bridge, "ip", "link", "set", name, "mtu", str(_MTU), "up")
        self._run(self._bridge, "ip", "link", "set", name, "master", "bridge")
        self._run(pid, "ip", "address", "add", f"10.0.0.{worker + 1}/24", "dev", HOST_INTERFACE)
        self._run(pid, "ip", "link", "set", HOST_INTERFACE, "mtu", str(_MTU), "up")
        self._run(pid, "ip", "link", "set", "lo", "up")

    def _hold_namespace(self) -> int:
        holder = hold_namespace()
        self._stack.callback(holder.wait)
        self._stack.callback(holder.kill)
        return holder.pid

    @staticmethod
    def _run(pid: int, *command: str) -> None:
        result = subprocess.run(inside(pid, *command), capture_output=True, text=True, check=False)
        if result.returncode:
            raise TopologyError(f"{' '.join(command)}: {result.stderr.strip()}; run as root")

"""A software switch and a `peelsum job serve` of a job there, each a process of this machine."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from peelsum.processes import Child

#: Below the ports that the kernel hands out by itself.
_BASES = range(20_000, 32_000, 40)
_DESCRIPTION = """
[job]
id = 1
workers = {ranks}
timeout_s = 60.0
[switch]
p4runtime = "127.0.0.1:{grpc_port}"
pipeline_lanes = 256
[ports]
workers = {workers}
server = {server}
"""


@contextmanager
def served_job(ranks: int) -> Iterator[dict[str, str]]:
    """Run a switch, and serve a job of `ranks` workers there; yield the environment that workers need."""
    with ExitStack() as stack:
        folder, base = Path(stack.enter_context(TemporaryDirectory(prefix="peelsum-"))), _free_base(ranks + 1)
        options = ["--ports", str(ranks + 1), "--udp-base", str(base), "--p4runtime", "127.0.0.1:0"]
        switch, listening = Child.start_ready("switch", "switch", "run", *options)
        stack.callback(switch.stop)
        workers = list(range(1, ranks + 1))
        job = _DESCRIPTION.format(
            ranks=ranks, workers=workers, server=ranks + 1, grpc_port=listening["grpc_port"]
        )
        (folder / "job.toml").write_text(job, encoding="utf-8")
        options = [str(folder / "job.toml"), "--udp", f"127.0.0.1:{base}", "--listen", "127.0.0.1:0"]
        controller, address = Child.start_ready("controller", "job", "serve", *options)
        stack.callback(controller.stop)
        yield {"PEELSUM_JOB": "//{host}:{port}".format_map(address), "GLOO_SOCKET_IFNAME": "lo"}


def _free_base(ports: int) -> int:
    """Return a random port number N such that the UDP ports N + 1 to N + `ports` are free."""
    while True:
        base = random.choice(_BASES)
        with ExitStack() as stack:
            try:
                for port in range(base + 1, base + 1 + ports):
                    stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind(("127.0.0.1", port))
            except OSError:
                continue
        return base


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])

"""Starts and ends a BMv2 switch process (`simple_switch_grpc`) on given interfaces."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from peelsum.processes.children import Child
from peelsum.topology.errors import TopologyError
from peelsum.wire import CPU_PORT

BINARY = "simple_switch_grpc"
#: How long BMv2 may take to listen, in seconds.
_PATIENCE = 30.0


def available() -> bool:
    """Return whether BMv2 is installed."""
    return shutil.which(BINARY) is not None


def start(
    interfaces: Mapping[int, str], *, name: str = BINARY, device_id: int = 1, address: str | None = None
) -> tuple[str, Child]:
    """Start BMv2 without a pipeline; return its P4Runtime address and the process.

    interfaces: by switch port. address: where P4Runtime listens; by default a free port of this host.
    Raises TopologyError if BMv2 is missing or does not start.
    """
    if not available():
        raise TopologyError(f"{BINARY}: not found on PATH; install BMv2, or use the softswitch")
    with held_tcp_port() as grpc_port, held_tcp_port() as thrift_port:
        address = address or f"127.0.0.1:{grpc_port}"
        command = [BINARY, "--no-p4", "--device-id", str(device_id), "--log-level", "off"]
        for port, interface in interfaces.items():
            command += ["-i", f"{port}@{interface}"]
        if _takes_thrift_port(shutil.which(BINARY) or BINARY):
            command += ["--thrift-port", str(thrift_port)]  # the default, 9090, would be the same for all
        command += ["--", "--grpc-server-addr", address, "--cpu-port", str(CPU_PORT)]
        child = Child(name, command, foreign=True)
        try:
            _await_listener(address, child)
        except BaseException:
            child.stop()
            raise
    return address, child


@contextmanager
def running(interfaces: Mapping[int, str], *, device_id: int = 1) -> Iterator[str]:
    """Run BMv2 as `start` does, yield its address, and end it at exit."""
    address, child = start(interfaces, device_id=device_id)
    try:
        yield address
    finally:
        child.stop()


@cache
def _takes_thrift_port(binary: str) -> bool:
    """Return whether this BMv2 was built with Thrift, according to its help text."""
    try:
        shown = subprocess.run([binary, "--help"], capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False  # starting it reports the error
    return b"--thrift-port" in shown.stdout + shown.stderr


@contextmanager
def held_tcp_port() -> Iterator[int]:
    """Yield a free port that nothing is given meanwhile, except a server that binds it to reuse it.

    gRPC sets SO_REUSEPORT, and Thrift SO_REUSEADDR, which Linux grants while nobody listens.
    """
    with socket.socket() as holder:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            holder.setsockopt(socket.SOL_SOCKET, option, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def _await_listener(address: str, child: Child) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if not child.running:
            raise TopologyError(child.exit_report())
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise TopologyError(
        f"{child.name}: {BINARY} does not listen on {address} after {_PATIENCE:g} s{child.output_tail()}; "
        "check whether another program uses one of its ports"
    )

"""Start and stop a BMv2 switch process (`simple_switch_grpc`) on network interfaces."""

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
#: The time limit for BMv2's start, in seconds.
_START_TIMEOUT_S = 30.0


def available() -> bool:
    """Return whether BMv2 is installed."""
    return shutil.which(BINARY) is not None


def start(
    interfaces: Mapping[int, str], *, name: str = BINARY, device_id: int = 1, address: str | None = None
) -> tuple[str, Child]:
    """Start BMv2 without a pipeline; return its P4Runtime address and the process.

    interfaces: the interface of each switch port. name: the process's name in messages.
    address: the address of its P4Runtime server, by default a free port on loopback.
    Raises TopologyError if BMv2 is not installed or does not start.
    """
    if not available():
        raise TopologyError(f"{BINARY}: not found on PATH; install BMv2, or use the softswitch")
    with reserved_tcp_port() as grpc_port, reserved_tcp_port() as thrift_port:
        address = address or f"127.0.0.1:{grpc_port}"
        command = [BINARY, "--no-p4", "--device-id", str(device_id), "--log-level", "off"]
        for port, interface in interfaces.items():
            command += ["-i", f"{port}@{interface}"]
        if _has_thrift_option(shutil.which(BINARY) or BINARY):
            command += ["--thrift-port", str(thrift_port)]  # the default, 9090, would be the same for all
        command += ["--", "--grpc-server-addr", address, "--cpu-port", str(CPU_PORT)]
        child = Child(name, command, foreign=True)
        try:
            wait_until_listening(child, BINARY, address, _START_TIMEOUT_S)
        except BaseException:
            child.stop()
            raise
        return address, child


def wait_until_listening(switch: Child, program: str, address: str, timeout_s: float) -> None:
    """Wait until a switch accepts connections at host:port. Raises TopologyError if it does not.

    program: what the switch is called in errors.
    """
    host, port = address.split(":")
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not switch.running:
            raise TopologyError(switch.exit_report())
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise TopologyError(
        f"{switch.name}: {program} does not listen on {address} after {timeout_s:g} s{switch.output_tail()}; "
        "check whether another program uses one of its ports"
    )


@contextmanager
def running(interfaces: Mapping[int, str], *, device_id: int = 1) -> Iterator[tuple[str, int]]:
    """Run BMv2 during the body, as `start` does; yield its address and its process's id."""
    address, child = start(interfaces, device_id=device_id)
    try:
        yield address, child.pid
    finally:
        child.stop()


@cache
def _has_thrift_option(binary: str) -> bool:
    """Return whether this BMv2 was built with Thrift, according to its help text."""
    try:
        result = subprocess.run(
            [binary, "--help"], capture_output=True, timeout=_START_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False  # the start itself reports the error
    return b"--thrift-port" in result.stdout + result.stderr


@contextmanager
def reserved_tcp_port() -> Iterator[int]:
    """Yield a TCP port that stays reserved during the body for a server that allows its reuse.

    gRPC sets SO_REUSEPORT, and Thrift SO_REUSEADDR. Linux lets them bind the port while nobody listens.
    """
    with socket.socket() as holder:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            holder.setsockopt(socket.SOL_SOCKET, option, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])

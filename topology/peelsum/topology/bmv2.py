"""A BMv2 switch process (`simple_switch_grpc`) on given interfaces, from start to end.

Owns the process. Refuses to know what pipeline a controller loads into it.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from peelsum.topology.errors import TopologyError
from peelsum.topology.namespaces import die_with_parent
from peelsum.wire import CPU_PORT

BINARY = "simple_switch_grpc"
_PATIENCE = 10.0


def available() -> bool:
    """Whether BMv2 is installed."""
    return shutil.which(BINARY) is not None


@contextmanager
def running(interfaces: Mapping[int, str], *, device_id: int = 1) -> Iterator[str]:
    """BMv2 without a pipeline, `interfaces` by switch port; yields its P4Runtime address, ends it at exit.

    Raises TopologyError where it is missing or does not come up.
    """
    if not available():
        raise TopologyError(f"{BINARY}: not found on PATH; install BMv2, or do without it")
    address = f"127.0.0.1:{_free_tcp_port()}"
    command = [BINARY, "--no-p4", "--device-id", str(device_id), "--log-level", "off"]
    for port, name in interfaces.items():
        command += ["-i", f"{port}@{name}"]
    command += ["--", "--grpc-server-addr", address, "--cpu-port", str(CPU_PORT)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent
    )
    try:
        _await_listener(address, process)
        yield address
    finally:
        process.terminate()
        process.wait()


def _free_tcp_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_listener(address: str, process: subprocess.Popen[bytes]) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise TopologyError(f"{BINARY}: ended with status {process.returncode} before it listened")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise TopologyError(f"{BINARY}: does not listen on {address} after {_PATIENCE:g} s")

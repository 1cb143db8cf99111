"""BMv2's switch without ports, for tests that need its P4Runtime server only."""

import shutil
import subprocess
from contextlib import contextmanager

import grpc
import pytest
from patience import PATIENCE_S

from peelsum.topology.bmv2 import reserved_tcp_port

BMV2 = "simple_switch_grpc"


@contextmanager
def running_bmv2(log_file, address=None):
    """The P4Runtime address of a fresh BMv2, a free one unless given; skips where it is not installed."""
    if shutil.which(BMV2) is None:
        pytest.skip(f"{BMV2} is not on PATH")
    with reserved_tcp_port() as grpc_port, reserved_tcp_port() as thrift_port:
        process, address = _started(log_file, address or f"127.0.0.1:{grpc_port}", thrift_port)
        try:
            with grpc.insecure_channel(address) as channel:
                grpc.channel_ready_future(channel).result(timeout=PATIENCE_S)
        except BaseException:
            process.kill()
            raise
    try:
        yield address
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


def _started(log_file, address, thrift_port):
    command = [BMV2, "--no-p4", "--device-id", "1", "--", "--grpc-server-addr", address, "--cpu-port", "255"]
    if "--thrift-port" in subprocess.run([BMV2, "--help"], capture_output=True, text=True).stdout:
        # Or every one of them would want the same.
        command[1:1] = ["--thrift-port", str(thrift_port)]
    with log_file.open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log), address

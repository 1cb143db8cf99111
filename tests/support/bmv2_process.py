"""BMv2's switch without ports, for what only needs its P4Runtime server."""

import shutil
import socket
import subprocess
from contextlib import contextmanager

import grpc
import pytest
from patience import PATIENCE_S

BMV2 = "simple_switch_grpc"


@contextmanager
def running_bmv2(log_file, address=None):
    """The P4Runtime address of a fresh BMv2, a free one unless given; skips where it is not installed."""
    if shutil.which(BMV2) is None:
        pytest.skip(f"{BMV2} is not on PATH")
    address = address or _free_address()
    command = [BMV2, "--no-p4", "--device-id", "1", "--", "--grpc-server-addr", address, "--cpu-port", "255"]
    if "--thrift-port" in subprocess.run([BMV2, "--help"], capture_output=True, text=True).stdout:
        # Or every one of them would want the same.
        command[1:1] = ["--thrift-port", _free_address().partition(":")[2]]
    with log_file.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=PATIENCE_S)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


def _free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"

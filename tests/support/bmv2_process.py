"""BMv2's switch, without ports or in a network namespace with veth pairs."""

import ctypes
import os
import queue
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r, p4r_grpc
from patience import PATIENCE_S

from peelsum.topology.bmv2 import reserved_tcp_port

BMV2 = "simple_switch_grpc"
CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3


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


class Bmv2InNamespace:
    """One running BMv2 in a network namespace of its own, one veth pair a port, and its primary. Needs root.

    `sockets` are the hosts' ends of the ports, by port. options: further ones of `simple_switch_grpc`.
    """

    def __init__(self, name, ports, log_path, *options):
        self._name, self._log, self.sockets, self._process = name, log_path.open("wb"), {}, None
        _ip("netns", "add", name)
        try:
            self._start(ports, options)
        except BaseException:
            self.close()
            raise

    def _start(self, ports, options):
        with _inside(self._name):
            _ip("link", "set", "lo", "up")
            for port in ports:
                _ip("link", "add", f"s{port}", "type", "veth", "peer", "name", f"h{port}")
                for end in (f"s{port}", f"h{port}"):
                    Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
                    _ip("link", "set", end, "up")
                sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
                sock.bind((f"h{port}", 0))
                sock.setblocking(False)
                self.sockets[port] = sock
        interfaces = [word for port in ports for word in ("-i", f"{port}@s{port}")]
        # gRPC on a Unix socket: it crosses the namespace's border and takes no port.
        address = f"unix:/tmp/{self._name}.sock"
        command = ["ip", "netns", "exec", self._name, BMV2, "--device-id", "1", *interfaces, "--no-p4", "--"]
        self._process = subprocess.Popen(
            [*command, "--grpc-server-addr", address, *options], stdout=self._log, stderr=subprocess.STDOUT
        )
        self._channel = grpc.insecure_channel(address)
        grpc.channel_ready_future(self._channel).result(timeout=PATIENCE_S)
        self.stub, self._requests = p4r_grpc.P4RuntimeStub(self._channel), queue.SimpleQueue()
        #: What the switch sends to its primary.
        self.stream = self.stub.StreamChannel(iter(self._requests.get, None))
        self.send(arbitration=p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=1)))
        assert next(self.stream).arbitration.status.code == 0

    def send(self, **message):
        """Send a message of the primary's stream."""
        self._requests.put(p4r.StreamMessageRequest(**message))

    def load(self, p4info, device_config):
        """Load a pipeline: registers zero, tables empty. BMv2 keeps multicast groups across it."""
        action = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        fields = {"device_id": 1, "election_id": p4r.Uint128(low=1), "action": action}
        request = p4r.SetForwardingPipelineConfigRequest(**fields)
        request.config.p4info.CopyFrom(p4info)
        request.config.p4_device_config = device_config
        self.stub.SetForwardingPipelineConfig(request)

    def update(self, kind, **entity):
        """Write one update of P4Runtime."""
        request = p4r.WriteRequest(device_id=1, election_id=p4r.Uint128(low=1))
        request.updates.add(type=kind, entity=p4r.Entity(**entity))
        self.stub.Write(request)

    def status(self):
        """Return the status with which the process has ended, or None."""
        return self._process.poll()

    def close(self):
        if self._process is not None:
            self._requests.put(None)
            self._channel.close()
            self._process.terminate()
            self._process.wait(timeout=PATIENCE_S)
        for sock in self.sockets.values():
            sock.close()
        self._log.close()
        _ip("netns", "del", self._name)


@contextmanager
def _inside(name):
    """The calling thread in a network namespace."""
    home, there = (os.open(path, os.O_RDONLY) for path in ("/proc/thread-self/ns/net", f"/run/netns/{name}"))
    _setns(there)
    try:
        yield
    finally:
        _setns(home)
        os.close(home)
        os.close(there)


def _setns(descriptor):
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True)

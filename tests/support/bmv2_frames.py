"""BMv2 with any program in a network namespace of its own, one veth pair a port: frames in, frames out.

Needs root. Written for programs without tables that control fills: BMv2 gets the JSON, and groups and clone
sessions over P4Runtime, without any P4Info.
"""

import os
import select
import socket
import subprocess
import time
from pathlib import Path

import grpc
from bmv2_rig import ETH_P_ALL, _inside, _ip
from finsy.proto import p4r, p4r_grpc
from patience import PATIENCE_S


class Bmv2Frames:
    """One running BMv2 with a program, given as JSON; ports are those given. `close()` ends it."""

    def __init__(self, program, ports, log_path):
        self._name = f"frames-{os.getpid()}"
        self._log = log_path.open("wb")
        self._sockets = {}
        _ip("netns", "add", self._name)
        try:
            self._start(program, ports)
        except BaseException:
            self.close()
            raise

    def _start(self, program, ports):
        interfaces = []
        with _inside(self._name):
            _ip("link", "set", "lo", "up")
            for port in ports:
                _ip("link", "add", f"s{port}", "type", "veth", "peer", "name", f"h{port}")
                for end in (f"s{port}", f"h{port}"):
                    Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
                    _ip("link", "set", end, "up")
                found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
                found.bind((f"h{port}", 0))
                found.setblocking(False)
                self._sockets[port] = found
                interfaces += ["-i", f"{port}@s{port}"]
        address = f"unix:/tmp/{self._name}.sock"
        command = ["ip", "netns", "exec", self._name, "simple_switch_grpc", "--device-id", "1", *interfaces]
        command += ["--no-p4", "--", "--grpc-server-addr", address]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        self._channel = grpc.insecure_channel(address)
        grpc.channel_ready_future(self._channel).result(timeout=PATIENCE_S)
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        arbitration = p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=1))
        self._held = socket.socketpair()

        def requests():
            yield p4r.StreamMessageRequest(arbitration=arbitration)
            self._held[1].recv(1)

        # Kept: the session ends with the stream.
        self._stream = self._stub.StreamChannel(requests())
        assert next(self._stream).arbitration.status.code == 0
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=1,
            election_id=p4r.Uint128(low=1),
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        request.config.p4info.SetInParent()
        request.config.p4_device_config = program
        self._stub.SetForwardingPipelineConfig(request)

    def set_group(self, number, replicas):
        entry = p4r.MulticastGroupEntry(multicast_group_id=number)
        self._replicate(entry, replicas, "multicast_group_entry")

    def set_session(self, number, replicas):
        entry = p4r.CloneSessionEntry(session_id=number)
        self._replicate(entry, replicas, "clone_session_entry")

    def _replicate(self, entry, replicas, kind):
        for port, instance in replicas:
            entry.replicas.add(egress_port=port, instance=instance)
        request = p4r.WriteRequest(device_id=1, election_id=p4r.Uint128(low=1))
        replication = p4r.PacketReplicationEngineEntry(**{kind: entry})
        request.updates.add(
            type=p4r.Update.INSERT, entity=p4r.Entity(packet_replication_engine_entry=replication)
        )
        self._stub.Write(request)

    def exchange(self, port, frame, count, marker):
        """Send a frame, wait for `count` frames, then send a marker: (port, frame, port, answer).

        Returns the frames that came before the marker's answer, by port; also further frames, if they leave
        before.
        """
        out = {at: [] for at in self._sockets}
        self._sockets[port].send(frame)
        self._collect_until(lambda: sum(map(len, out.values())) >= count, out)
        to, raw, back, answer = marker
        self._sockets[to].send(raw)
        assert self._collect_until(lambda: answer in out[back], out), self._fate()
        out[back].remove(answer)
        return {at: frames for at, frames in out.items() if frames}

    def _fate(self):
        """Why there is no answer. BMv2 takes a program that it cannot load, and crashes at a packet."""
        status = self._process.poll()
        if status is None:
            return f"simple_switch_grpc runs, but answered nothing within {PATIENCE_S} s"
        return (
            f"simple_switch_grpc ended with {status}; it names what it cannot load if run with the JSON file"
        )

    def _collect_until(self, enough, out):
        deadline = time.monotonic() + PATIENCE_S
        while not enough() and time.monotonic() < deadline and self._process.poll() is None:
            ready = select.select(list(self._sockets.values()), [], [], 1)[0]
            for port, found in self._sockets.items():
                if found in ready:
                    raw, (_, _, packet_type, *_) = found.recvfrom(65536)
                    if packet_type != socket.PACKET_OUTGOING:
                        out[port].append(raw)
        return enough()

    def close(self):
        process = getattr(self, "_process", None)
        if process is not None:
            self._held[0].close()
            self._channel.close()
            process.terminate()
            process.wait(timeout=PATIENCE_S)
        for found in self._sockets.values():
            found.close()
        self._log.close()
        _ip("netns", "del", self._name)

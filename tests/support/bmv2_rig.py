"""BMv2 as a rig: `simple_switch_grpc` in a network namespace of its own, one veth pair a port.

Needs root. A port may answer at any time, so every packet is followed by a marker, which the switch
multicasts to all ports and to the controller. Packets that arrive before the marker are the packet's outputs.
"""

import ctypes
import itertools
import os
import select
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import grpc
from finsy.proto import p4i, p4r, p4r_grpc
from frames import FRAME_HEADER_BYTES, frame, payload_of
from google.protobuf import text_format
from patience import PATIENCE_S
from rigs import PORTS, TableRig

from peelsum.spec.packet import Packet
from peelsum.wire import CPU_PORT, EVERYONE, Kind, Verdict

CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3
#: A job of the rig's own, whose results mark the end of what a packet caused.
MARKER_JOB, MARKER_PORT = 254, 50


class Bmv2Rig(TableRig):
    """One running BMv2. `close()` ends it and removes its namespace."""

    def __init__(self, pipeline, log_path):
        self.p4info = text_format.Parse(pipeline.p4info_path.read_text(), p4i.P4Info())
        self._device_config = pipeline.json_path.read_bytes()
        self.lanes = sum(r.preamble.alias.startswith("lane_") for r in self.p4info.registers)
        self.slots = next(r.size for r in self.p4info.registers if r.preamble.alias == "worker_bitmap")
        self._name = f"peelsum-{os.getpid()}"
        self._log = log_path.open("wb")
        _ip("netns", "add", self._name)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self):
        self._sockets, self._groups = {}, set()
        interfaces = []
        with _inside(self._name):
            _ip("link", "set", "lo", "up")
            for port in (*PORTS, MARKER_PORT):
                _ip("link", "add", f"s{port}", "type", "veth", "peer", "name", f"h{port}")
                for end in (f"s{port}", f"h{port}"):
                    Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
                    _ip("link", "set", end, "up")
                self._sockets[port] = socket.socket(
                    socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)
                )
                self._sockets[port].bind((f"h{port}", 0))
                self._sockets[port].setblocking(False)
                interfaces += ["-i", f"{port}@s{port}"]
        # gRPC on a Unix socket: it crosses the namespace's border and takes no port.
        self._address = f"unix:/tmp/{self._name}.sock"
        command = ["ip", "netns", "exec", self._name, "simple_switch_grpc", "--device-id", "1", *interfaces]
        command += ["--no-p4", "--", "--grpc-server-addr", self._address, "--cpu-port", str(CPU_PORT)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        self._connect()

    def _connect(self):
        self._channel = grpc.insecure_channel(self._address)
        grpc.channel_ready_future(self._channel).result(timeout=PATIENCE_S)
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._stream_out = []
        wake = self._wake = socket.socketpair()

        def requests():
            while wake[1].recv(1):
                yield self._stream_out.pop(0)

        self._stream = self._stub.StreamChannel(requests())
        arbitration = p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=1))
        self._send(p4r.StreamMessageRequest(arbitration=arbitration))
        assert next(self._stream).arbitration.status.code == 0

    def _send(self, request):
        self._stream_out.append(request)
        self._wake[0].send(b"x")

    def fresh(self):
        """Load the pipeline again: registers zero, tables empty. BMv2 keeps multicast groups across it."""
        for group in self._groups:
            self._write_group(p4r.Update.DELETE, group, [])
        self._groups.clear()
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=1,
            election_id=p4r.Uint128(low=1),
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        request.config.p4info.CopyFrom(self.p4info)
        request.config.p4_device_config = self._device_config
        self._stub.SetForwardingPipelineConfig(request)
        self._written = set()
        self.admit_job(
            MARKER_JOB, generation=0, salt=0, expected_mask=1, up_port=MARKER_PORT, group=MARKER_JOB
        )
        self.set_group(MARKER_JOB, [*PORTS, MARKER_PORT, CPU_PORT])
        self._markers = 0
        self._exchange(None)
        self._before = self._read_verdicts()

    # -- tables ----------------------------------------------------------------------------------------

    def _by_alias(self, kind, alias):
        return next(e for e in getattr(self.p4info, kind) if e.preamble.alias == alias)

    def write(self, table, keys, action, params):
        info = self._by_alias("tables", table)
        chosen = self._by_alias("actions", action)
        entry = p4r.TableEntry(table_id=info.preamble.id, is_default_action=keys is None)
        for field, value in zip(info.match_fields, keys or (), strict=True):
            match = entry.match.add(field_id=field.id)
            if field.match_type == p4i.MatchField.LPM:
                match.lpm.value, match.lpm.prefix_len = _bytes(value[0]), value[1]
            else:
                match.exact.value = _bytes(value)
        entry.action.action.action_id = chosen.preamble.id
        for param, value in zip(chosen.params, params, strict=True):
            entry.action.action.params.add(param_id=param.id, value=_bytes(value))
        exists = keys is None or (table, keys) in self._written
        self._written.add((table, keys))
        self._update(p4r.Update.MODIFY if exists else p4r.Update.INSERT, table_entry=entry)

    def set_group(self, group, ports):
        self._groups.add(group)
        self._write_group(p4r.Update.INSERT, group, ports)

    def _write_group(self, kind, group, ports):
        entry = p4r.PacketReplicationEngineEntry()
        entry.multicast_group_entry.multicast_group_id = group
        for port in ports:
            entry.multicast_group_entry.replicas.add(egress_port=port)
        self._update(kind, packet_replication_engine_entry=entry)

    def _update(self, kind, **entity):
        request = p4r.WriteRequest(device_id=1, election_id=p4r.Uint128(low=1))
        request.updates.add(type=kind, entity=p4r.Entity(**entity))
        self._stub.Write(request)

    def _read_verdicts(self):
        request = p4r.ReadRequest(device_id=1)
        request.entities.add().counter_entry.counter_id = self._by_alias("counters", "verdicts").preamble.id
        found = [e.counter_entry for reply in self._stub.Read(request) for e in reply.entities]
        counts = {e.index.index: e.data.packet_count for e in found}
        counts[Verdict.RESULT_RETURNED] -= self._markers
        return counts

    def verdicts(self):
        counts = self._read_verdicts()
        return {v: counts[v] - self._before[v] for v in Verdict if counts[v] != self._before[v]}

    # -- packets ---------------------------------------------------------------------------------------

    def process(self, port, payload, now_us=0):
        return [(p, payload_of(raw)) for p, raw in self._exchange((port, frame(payload)))]

    def process_frames(self, frames, now_us=0):
        """Raw frames in, as (port, bytes), one after the other; raw frames out."""
        return [output for one in frames for output in self._exchange(one)]

    def _exchange(self, packet):
        """Send one packet and a marker after it; return the outputs that left before the marker, by port.

        A port's packets are processed in order and leave in order, so no waiting time is needed to know that
        nothing left.
        """
        port, raw = (MARKER_PORT, None) if packet is None else packet
        if ("members", (MARKER_JOB, port)) not in self._written:
            self.admit_server(MARKER_JOB, port)
        marker = Packet(Kind.RESULT, 0, MARKER_JOB, 0, EVERYONE, self._markers, 0, [0] * self.lanes).build()
        self._markers += 1
        for one in (raw, frame(marker)):
            if one is not None:
                self._put(port, one)
        found = [output for at, sock in self._sockets.items() for output in self._until(marker, at, sock)]
        return sorted(found + self._told_until(marker))

    def _put(self, port, raw):
        if port == CPU_PORT:
            self._send(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=raw)))
        else:
            self._sockets[port].send(raw)

    def _until(self, marker, port, sock):
        found = []
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if not select.select([sock], [], [], 1)[0]:
                continue
            raw, (_, _, packet_type, *_) = sock.recvfrom(65536)
            if packet_type == socket.PACKET_OUTGOING:
                continue
            if _is(marker, raw):
                return found
            found.append((port, raw))
        raise TimeoutError(f"port {port}: no marker; is simple_switch_grpc alive?")

    def _told_until(self, marker):
        """PacketIns before the marker's."""
        payloads = (message.packet.payload for message in self._stream)
        return [(CPU_PORT, raw) for raw in itertools.takewhile(lambda raw: not _is(marker, raw), payloads)]

    def close(self):
        process = getattr(self, "_process", None)
        if process is not None:
            self._wake[0].close()
            self._channel.close()
            process.terminate()
            process.wait(timeout=PATIENCE_S)
        for sock in self._sockets.values():
            sock.close()
        self._log.close()
        _ip("netns", "del", self._name)


def _is(marker, raw):
    """Whether a frame is the marker: all but version, kind and flags, which may be marked."""
    return raw[FRAME_HEADER_BYTES + 3 :] == marker[3:]


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


def _bytes(value):
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")

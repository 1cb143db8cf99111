"""BMv2 as a rig: `simple_switch_grpc` in a network namespace of its own, one veth pair a port.

Needs root. A port may answer at any time, so every packet is followed by a marker, which the switch
multicasts to all ports and to the controller. Packets that arrive before the marker are the packet's outputs.
"""

import itertools
import os
import select
import socket
import time

from bmv2_process import Bmv2InNamespace
from finsy.proto import p4i, p4r
from frames import FRAME_HEADER_BYTES, frame, payload_of
from google.protobuf import text_format
from patience import PATIENCE_S
from rigs import PORTS, TableRig

from peelsum.spec import Packet
from peelsum.wire import CPU_PORT, EVERYONE, Kind, Verdict

#: A job of the rig's own, whose results mark the end of what a packet caused.
MARKER_JOB, MARKER_PORT = 254, 50


class Bmv2Rig(TableRig):
    """One running BMv2. `close()` ends it and removes its namespace."""

    def __init__(self, pipeline, log_path):
        self.p4info = text_format.Parse(pipeline.p4info_path.read_text(), p4i.P4Info())
        self._device_config = pipeline.json_path.read_bytes()
        self.lanes = sum(r.preamble.alias.startswith("lane_") for r in self.p4info.registers)
        self.slots = next(r.size for r in self.p4info.registers if r.preamble.alias == "worker_bitmap")
        ports, options = (*PORTS, MARKER_PORT), ("--cpu-port", str(CPU_PORT))
        self._bmv2, self._groups = Bmv2InNamespace(f"peelsum-{os.getpid()}", ports, log_path, *options), set()
        self.close = self._bmv2.close

    def fresh(self):
        """Load the pipeline again: registers zero, tables empty. BMv2 keeps multicast groups across it."""
        for group in self._groups:
            self._write_group(p4r.Update.DELETE, group, [])
        self._groups.clear()
        self._bmv2.load(self.p4info, self._device_config)
        self._written = set()
        fields = {"generation": 0, "salt": 0, "expected_mask": 1}
        self.admit_job(MARKER_JOB, up_port=MARKER_PORT, group=MARKER_JOB, **fields)
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
        self._bmv2.update(p4r.Update.MODIFY if exists else p4r.Update.INSERT, table_entry=entry)

    def set_group(self, group, ports):
        self._groups.add(group)
        self._write_group(p4r.Update.INSERT, group, ports)

    def _write_group(self, kind, group, ports):
        entry = p4r.PacketReplicationEngineEntry()
        entry.multicast_group_entry.multicast_group_id = group
        for port in ports:
            entry.multicast_group_entry.replicas.add(egress_port=port)
        self._bmv2.update(kind, packet_replication_engine_entry=entry)

    def _read_verdicts(self):
        request = p4r.ReadRequest(device_id=1)
        request.entities.add().counter_entry.counter_id = self._by_alias("counters", "verdicts").preamble.id
        found = [e.counter_entry for reply in self._bmv2.stub.Read(request) for e in reply.entities]
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
        sockets = self._bmv2.sockets.items()
        outputs = [output for at, sock in sockets for output in self._until(marker, at, sock)]
        return sorted(outputs + self._told_until(marker))

    def _put(self, port, raw):
        if port == CPU_PORT:
            self._bmv2.send(packet=p4r.PacketOut(payload=raw))
        else:
            self._bmv2.sockets[port].send(raw)

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
        payloads = (message.packet.payload for message in self._bmv2.stream)
        return [(CPU_PORT, raw) for raw in itertools.takewhile(lambda raw: not _is(marker, raw), payloads)]


def _is(marker, raw):
    """Whether a frame is the marker: all but version, kind and flags, which may be marked."""
    return raw[FRAME_HEADER_BYTES + 3 :] == marker[3:]


def _bytes(value):
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")

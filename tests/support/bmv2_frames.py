"""BMv2 with any program in a network namespace of its own, one veth pair a port: frames in, frames out.

Needs root. Written for programs without tables that control fills: BMv2 gets the JSON, and groups and clone
sessions over P4Runtime, without any P4Info.
"""

import os
import select
import socket
import time

from bmv2_process import Bmv2InNamespace
from finsy.proto import p4i, p4r
from patience import PATIENCE_S


class Bmv2Frames:
    """One running BMv2 with a program, given as JSON; ports are those given. `close()` ends it."""

    def __init__(self, program, ports, log_path):
        self._bmv2 = Bmv2InNamespace(f"frames-{os.getpid()}", ports, log_path)
        self.close = self._bmv2.close
        self._bmv2.load(p4i.P4Info(), program)

    def set_group(self, number, replicas):
        entry = p4r.MulticastGroupEntry(multicast_group_id=number)
        self._replicate(entry, replicas, "multicast_group_entry")

    def set_session(self, number, replicas):
        entry = p4r.CloneSessionEntry(session_id=number)
        self._replicate(entry, replicas, "clone_session_entry")

    def _replicate(self, entry, replicas, kind):
        for port, instance in replicas:
            entry.replicas.add(egress_port=port, instance=instance)
        replication = p4r.PacketReplicationEngineEntry(**{kind: entry})
        self._bmv2.update(p4r.Update.INSERT, packet_replication_engine_entry=replication)

    def exchange(self, port, frame, count, marker):
        """Send a frame, wait for `count` frames, then send a marker: (port, frame, port, answer).

        Returns the frames that came before the marker's answer, by port; also further frames, if they leave
        before.
        """
        out = {at: [] for at in self._bmv2.sockets}
        self._bmv2.sockets[port].send(frame)
        self._collect_until(lambda: sum(map(len, out.values())) >= count, out)
        to, raw, back, answer = marker
        self._bmv2.sockets[to].send(raw)
        assert self._collect_until(lambda: answer in out[back], out), self._fate()
        out[back].remove(answer)
        return {at: frames for at, frames in out.items() if frames}

    def _fate(self):
        """Why there is no answer. BMv2 takes a program that it cannot load, and crashes at a packet."""
        status = self._bmv2.status()
        if status is None:
            return f"simple_switch_grpc runs, but answered nothing within {PATIENCE_S} s"
        return f"simple_switch_grpc ended with {status}; run with the JSON file, it names what it cannot load"

    def _collect_until(self, enough, out):
        deadline = time.monotonic() + PATIENCE_S
        while not enough() and time.monotonic() < deadline and self._bmv2.status() is None:
            ready = select.select(list(self._bmv2.sockets.values()), [], [], 1)[0]
            for port, sock in self._bmv2.sockets.items():
                if sock in ready:
                    raw, (_, _, packet_type, *_) = sock.recvfrom(65536)
                    if packet_type != socket.PACKET_OUTGOING:
                        out[port].append(raw)
        return enough()

"""Load a P4 program that sums for hosts of its own, in place of peelsum's program and controller."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from finsy.p4schema import P4Schema
from finsy.proto import p4i, p4r

from peelsum.control.errors import ControlError
from peelsum.control.session import Session
from peelsum.control.v1model import V1Model
from peelsum.pipelines.artifacts import PipelineError, with_lanes
from peelsum.reading import LimitError, parse_json, read_bytes
from peelsum.topology.errors import TopologyError

_ANSWER_S = 30.0
#: The longest P4Runtime message that the softswitch accepts is 16 MiB.
_MOST_BYTES = (16 << 20) - 1024


def load_program(
    path: Path, lanes: int, address: str, device_id: int, group: int, ports: Iterable[int]
) -> None:
    """Load a program's BMv2 JSON, for this number of lanes, into the switch at a P4Runtime address.

    Multicast group `group` then leads to `ports`. Registers are zero, also if the program ran there before,
    and no port has a secret. Raises TopologyError.
    """
    replicas = [p4r.Replica(egress_port=port) for port in ports]
    multicast = p4r.MulticastGroupEntry(multicast_group_id=group, replicas=replicas)
    entry = p4r.PacketReplicationEngineEntry(multicast_group_entry=multicast)
    entity = p4r.Entity(packet_replication_engine_entry=entry)
    try:
        with Session(address, device_id, timeout_s=_ANSWER_S) as session:
            session.become_primary()
            session.commit(P4Schema(p4i.P4Info(), _read(path, lanes)))
            # A job of peelsum that was admitted here since leaves its ports' secrets.
            driver = V1Model(session)
            known = driver.secret_ports()
            secrets = driver.secret_updates(dict.fromkeys(known or (), ""), known)
            session.write_raw([p4r.Update(type=p4r.Update.INSERT, entity=entity), *secrets])
    except ControlError as error:
        raise TopologyError(f"job.program: {path}: {error}") from None


def _read(path: Path, lanes: int) -> bytes:
    """Return a program's BMv2 JSON for this number of lanes. Raises TopologyError."""
    try:
        document = with_lanes(parse_json(read_bytes(path, _MOST_BYTES), _MOST_BYTES), lanes)
        program = json.dumps(document, separators=(",", ":")).encode()
        if len(program) <= _MOST_BYTES:
            return program
        reason = f"has {len(program):,} bytes with {lanes} lanes; use fewer job.lanes"
    except OSError as error:
        reason = f"{error.strerror}; give the path of what p4c-bm2-ss wrote"
    except (LimitError, PipelineError) as error:
        reason = str(error)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        reason = "is no BMv2 JSON; give the path of what p4c-bm2-ss wrote"
    raise TopologyError(f"job.program: {path}: {reason}")

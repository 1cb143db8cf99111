"""Entries, packets and refusals of the P4Runtime tests' own program."""

from __future__ import annotations

import grpc
import pytest
from finsy.p4entity import P4TableAction as Action
from finsy.p4entity import P4TableEntry as Entry
from finsy.p4entity import P4TableMatch as Match
from finsy.proto import p4r, rpc_code
from p4runtime_client import outcomes

from peelsum.softswitch.p4runtime.values import to_bytes

FRAME = bytes.fromhex("020000000001 020000000002 88b5") + b"payload"


def route(schema, dst="10.1.0.0/16", port=3, **fields):
    """Return an entry of table `route`, with other fields of a TableEntry."""
    entry = Entry("route", match=Match({"hdr.ipv4.dst": dst}), action=Action("forward", port=port))
    made = entry.encode_entry(schema)
    made.MergeFrom(p4r.TableEntry(**fields))
    return made


def acl(schema, priority, action="drop", **match):
    """Return an entry of table `filter`, which matches fields of the IPv4 header."""
    fields = {f"hdr.ipv4.{name}": value for name, value in match.items()}
    return Entry("filter", match=Match(fields), action=Action(action), priority=priority).encode_entry(schema)


def refusal(client, *updates):
    """Write updates that are refused; return the code of each."""
    with pytest.raises(grpc.RpcError) as error:
        client.write(*updates)
    return [rpc_code.Code.Name(code) for code, _ in outcomes(error.value)]


def packet_out(port, payload=FRAME):
    """Return a PacketOut to a port."""
    packet = p4r.PacketOut(payload=payload)
    packet.metadata.add(metadata_id=1, value=to_bytes(port))
    return packet

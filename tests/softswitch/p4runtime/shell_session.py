"""Runs a session of p4runtime-shell with a switch and prints one JSON object.

The Python of p4runtime-shell's own environment runs it. Arguments: address, P4Info file, BMv2 JSON file.
"""

import json
import sys

import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeWriteException


def write_entries():
    entry = sh.TableEntry("return_paths")(action="return_to")
    entry.match["job_id"] = "7"
    entry.match["sender"] = "3"
    entry.action["port"] = "4"
    entry.insert()

    group = sh.MulticastGroupEntry(7)
    for port in (1, 2, 4):
        group.add(port, 1)
    group.insert()

    default = sh.TableEntry("limits")(action="set_age_limit")
    default.is_default = True
    default.action["ticks"] = "1000"
    default.modify()

    try:
        entry.insert()
    except P4RuntimeWriteException as error:
        return str(error)
    return "accepted"


def read_back():
    entries = []
    sh.TableEntry("return_paths").read(entries.append)
    counter = sh.CounterEntry("verdicts")
    counter.index = 21
    group = next(iter(sh.MulticastGroupEntry(7).read()))
    return {
        "tables": sorted(table.name for table in sh.P4Objects(sh.P4Type.table)),
        "entries": len(entries),
        "match": {name: entries[0].match[name].exact.value.hex() for name in ("job_id", "sender")},
        "port": entries[0].action["port"].value.hex(),
        "replicas": sorted((replica.egress_port, replica.instance) for replica in group.replicas),
        "counted": [cell.packet_count for cell in counter.read()],
    }


address, p4info, blob = sys.argv[1:]
config = sh.FwdPipeConfig(p4info, blob)
sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=config, verbose=False)
try:
    again = write_entries()
    print(json.dumps({**read_back(), "again": again}))
finally:
    sh.teardown()

"""Entries and packets from files, and what is said of wrong ones."""

import json
import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import peelsum
from frames import frame

from peelsum.softswitch import SoftswitchError, Switch, load
from peelsum.softswitch.inspection.entries import load_entries, packet_bytes, read_pcap
from peelsum.softswitch.inspection.trace import Tracer

P4 = Path(__file__).parents[1] / "p4"
ROUTE = {
    "table": "RouterIngress.routes",
    "match": {"hdr.ipv4.dst": ["10.0.2.2", 24]},
    "action_name": "RouterIngress.route",
    "action_params": {"next_hop": "08:00:00:00:02:22", "port": 2},
}
EVERYTHING = {
    "table": "everything",
    "match": {"small": 4, "middle": [80, 90], "wide": [0x1234, "0xff00"], "address": ["10.0.2.2", 24]},
    "action_name": "in_everything",
    "action_params": {"id": 7},
    "priority": 9,
}
STF = """
# a comment
add prefix hdr.probe.address:0x0a000202/24 in_prefix(id:0x10)
add I.everything 3 small:0x4 middle:80..90 wide:0x12** "address":10.0.2.2/24 I.in_everything(id:7) = $handle
setdefault I.masked I.in_masked(id:5)
mirroring_add 5 2
expect 2 ****
packet 4 0102 0304
"""


@pytest.fixture
def switch():
    return Switch(load(P4 / "lookups.json"), "python")


def entries_of(switch, tmp_path, content):
    path = tmp_path / "entries"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_entries(path, switch)


def test_tutorials_json(switch, tmp_path):
    default = {"table": "masked", "default_action": True, "action_name": "in_masked"}
    group = {"multicast_group_id": 3, "replicas": [{"egress_port": 1, "instance": 7}, {"egress_port": 2}]}
    session = {"clone_session_id": 4, "replicas": [{"egress_port": 6, "instance": 1}]}
    content = {
        "table_entries": [EVERYTHING, {**default, "action_params": {"id": "0x5"}}],
        "multicast_group_entries": [group],
        "clone_session_entries": [session],
    }
    assert entries_of(switch, tmp_path, content) == []
    (entry,) = switch.tables["I.everything"].entries()
    # Bits outside the mask and the prefix are cleared.
    assert entry.keys == ((80, 90), 4, (0x1200, 0xFF00), (0x0A000200, 24))
    assert (entry.action, entry.params, entry.priority) == ("I.in_everything", (7,), 9)
    assert switch.tables["I.masked"].default == ("I.in_masked", (5,))
    assert switch.groups.get(3) == ((1, 7), (2, 0))
    assert switch.sessions.get(4) == ((6, 1),)


def test_fields_that_are_left_out_match_everything(switch, tmp_path):
    entries_of(switch, tmp_path, {"table_entries": [{**EVERYTHING, "match": {"small": "4"}}]})
    (entry,) = switch.tables["I.everything"].entries()
    assert entry.keys == ((0, 0xFFFF), 4, (0, 0), (0, 0))


def test_stf_commands(switch, tmp_path):
    assert entries_of(switch, tmp_path, STF) == [(4, bytes([1, 2, 3, 4]), 0)]
    (route,) = switch.tables["I.prefix"].entries()
    assert (route.keys, route.params) == (((0x0A000200, 24),), (16,))
    (entry,) = switch.tables["I.everything"].entries()
    assert entry.keys == ((80, 90), 4, (0x1200, 0xFF00), (0x0A000200, 24))
    assert entry.priority == -3
    assert switch.tables["I.masked"].default == ("I.in_masked", (5,))
    assert switch.sessions.get(5) == ((2, 0),)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"table_entries": [{**EVERYTHING, "table": "x"}]}, "table: 'x'; give one of I.everything, "),
        ({"table_entries": [{**EVERYTHING, "action_name": "x"}]}, "table I.everything: action: 'x'; give"),
        ({"table_entries": [{**EVERYTHING, "action_params": {}}]}, "in_everything: parameters []; give id"),
        ({"table_entries": [{**EVERYTHING, "match": {"x": 1}}]}, "key: 'x'; give one of hdr.probe.address"),
        ({"table_entries": [{**EVERYTHING, "match": {"small": "x"}}]}, "small: 'x'; give 8 bits, as 10, 0xa"),
        ({"table_entries": [{**EVERYTHING, "match": {}}]}, "key hdr.probe.small: None; give 8 bits"),
        ({"table_entries": [{"table": "masked"}]}, "'action_name': is missing or of another type"),
        ({"table_entries": 5}, "is missing or of another type"),
        ("{", "Expecting property name"),
        ("add x", "line 1: add: is not known or incomplete"),
        ("\nadd prefix address:1", "line 2: table prefix: 'address:1' has no action"),
        ("jump 1 2", "line 1: jump: is not known or incomplete; use add"),
        ("packet 1 012", "line 1: packet: 3 hexadecimal digits; give two"),
    ],
)
def test_wrong_entries(switch, tmp_path, content, problem):
    with pytest.raises(SoftswitchError) as error:
        entries_of(switch, tmp_path, content)
    assert str(error.value).startswith(f"{tmp_path / 'entries'}: ")
    assert problem in str(error.value)


def test_random_changes_of_files_raise_only_errors_of_the_softswitch(switch, tmp_path):
    rng, path = random.Random(3), tmp_path / "file"
    texts = [
        STF.encode(),
        json.dumps({"table_entries": [EVERYTHING, EVERYTHING]}).encode(),
        pcap_of(b"abc", b"d"),
    ]
    for _ in range(400):
        data = bytearray(rng.choice(texts))
        for _ in range(rng.randrange(1, 5)):
            place = rng.randrange(len(data))
            data[place : place + rng.randrange(3)] = rng.choice(
                [b"", b"\0", b"9", b"[", b"{", b":", b"null", b"-1", b"\xff", b" "]
            )
        path.write_bytes(data)
        for read in (lambda: load_entries(path, switch), lambda: read_pcap(path, 1)):
            with suppress(SoftswitchError):
                read()


def pcap_of(*packets, order="<", fraction=5_000, magic=0xA1B23C4D):
    header = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 1 << 16, 1)
    records = (struct.pack(f"{order}IIII", 1, fraction, len(p), len(p)) + p for p in packets)
    return header + b"".join(records)


@pytest.mark.parametrize(("order", "magic", "us"), [("<", 0xA1B23C4D, 5), (">", 0xA1B2C3D4, 5_000)])
def test_pcap(tmp_path, order, magic, us):
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap_of(b"abc", b"", order=order, magic=magic))
    assert read_pcap(path, 3) == [(3, b"abc", 10**6 + us), (3, b"", 10**6 + us)]
    path.write_bytes(path.read_bytes()[:-17])
    with pytest.raises(SoftswitchError, match="ends within packet 1; copy the whole file"):
        read_pcap(path, 3)


def test_packet_digits():
    assert packet_bytes("0x01 02:Ff\n") == b"\x01\x02\xff"


def test_tables_that_observe_are_not_offered(tmp_path):
    with pytest.raises(SoftswitchError) as error:
        entries_of(Tracer(load(P4 / "router.json")).switch, tmp_path, {"table_entries": [{"table": "x"}]})
    assert str(error.value).endswith(
        "table: 'x'; give one of RouterIngress.acl, RouterIngress.by_port, RouterIngress.routes, "
        "RouterIngress.routes6"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--packet", "123"], "packet: 3 hexadecimal digits; give two hexadecimal digits for each byte"),
        (["--packet", "0g"], "packet: '0g'; give two hexadecimal digits for each byte"),
        (["--packet", "00", "--port", "511"], "--port"),
        ([], "--packet: is missing; give --packet HEX, --pcap FILE or an .stf file"),
        (["--pcap", "missing"], "missing: No such file or directory; give a file that can be read"),
        (["--packet", "00", "--switch", "x"], "--switch: x: give the switch as host:port"),
        (["--packet", "00", "--switch", "127.0.0.1:1"], "--switch: 127.0.0.1:1: has a program; leave out"),
    ],
)
def test_wrong_arguments(arguments, problem):
    done = peelsum("switch", "trace", str(P4 / "router.json"), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("peelsum: ")
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


def test_wrong_programs(tmp_path):
    path = tmp_path / "x.json"
    for content, problem in (("no", "not JSON"), ("{}", "has no pipelines, so it is not BMv2 JSON")):
        path.write_text(content)
        for command in (["trace", "--packet", "00"], ["graph"]):
            done = peelsum("switch", command[0], str(path), *command[1:])
            assert (done.returncode, done.stdout) == (2, "")
            assert problem in done.stderr


def test_the_command_prints_text_or_json(tmp_path):
    path = tmp_path / "routes.json"
    path.write_text(json.dumps({"table_entries": [{**ROUTE, "match": {}}]}))
    command = [
        "switch",
        "trace",
        str(P4 / "router.json"),
        "--entries",
        str(path),
        "--packet",
        frame(b"x").hex(),
    ]
    text, document = peelsum(*command), peelsum(*command, "--json")
    (trace,) = json.loads(document.stdout)
    assert trace["packets"][0]["port"] == 2
    assert "leaves: 43 bytes at port 2" in text.stdout
    assert "key hdr.ipv4.dst=10.0.0.2 (lpm)" in text.stdout

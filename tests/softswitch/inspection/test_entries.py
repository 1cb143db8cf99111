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
from peelsum.softswitch.compiler.loading import parse
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
PREFIX = {
    "table": "prefix",
    "match": {"address": ["10.0.2.2", 24]},
    "action_name": "in_prefix",
    "action_params": {"id": 7},
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
    text = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
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
    entries_of(switch, tmp_path, of(match={"small": "4"}))
    (entry,) = switch.tables["I.everything"].entries()
    assert entry.keys == ((0, 0xFFFF), 4, (0, 0), (0, 0))


def test_stf_commands(switch, tmp_path):
    assert entries_of(switch, tmp_path, STF) == [(4, bytes([1, 2, 3, 4]), 0)]
    (route,) = switch.tables["I.prefix"].entries()
    assert (route.keys, route.params) == (((0x0A000200, 24),), (16,))
    (entry,) = switch.tables["I.everything"].entries()
    assert entry.keys == ((80, 90), 4, (0x1200, 0xFF00), (0x0A000200, 24))
    assert entry.priority == 3
    assert switch.tables["I.masked"].default == ("I.in_masked", (5,))
    assert switch.sessions.get(5) == ((2, 0),)


def test_stf_elements_of_stacks(tmp_path):
    text = (P4 / "lookups.json").read_text().replace("hdr.probe.address", "hdr.probes[1].address")
    switch = Switch(parse(json.loads(text), "lookups"), "python")
    entries_of(switch, tmp_path, "add prefix probes$1.address:0x0a000202/24 in_prefix(id:0x10)")
    (route,) = switch.tables["I.prefix"].entries()
    assert route.keys == ((0x0A000200, 24),)


def test_stf_mac_addresses(tmp_path):
    switch = Switch(load(P4 / "router.json"), "python")
    key = "sm.ingress_port:1 hdr.ethernet.dst:08:00:00:00:01:11 ether_type:0x9000"
    entry = f"add by_port {key} permit(class_:9)"
    entries_of(switch, tmp_path, f"{entry}\nsetdefault routes route(port:2, next_hop:8:0:0:0:1:22)")
    (entry,) = switch.tables["RouterIngress.by_port"].entries()
    assert (entry.keys, entry.params) == ((1, 0x080000000111, 0x9000), (9,))
    assert switch.tables["RouterIngress.routes"].default == ("RouterIngress.route", (2, 0x080000000122))


def of(*entries, **changes):
    """Return a file of entries: by default one, with changes."""
    return {"table_entries": list(entries) or [EVERYTHING | changes]}


GROUP = {"multicast_group_entries": [{"multicast_group_id": 1, "replicas": [{"egress_port": 511}]}]}
SESSION = {"clone_session_entries": [{"clone_session_id": 1, "replicas": [{}]}]}
#: Contents of files, and what is said of them.
WRONG = [
    (of(table="x"), "table: 'x'; give one of I.everything, "),
    (of(action_name="x"), "table I.everything: action: 'x'; give"),
    (of(action_params={}), "in_everything: parameters []; give id"),
    (of(action_params={"id": "abc"}), "table I.everything: action I.in_everything: id: 'abc'; give"),
    (of(match={"x": 1}), "key: 'x'; give one of hdr.probe.address"),
    (of(match={"small": "x"}), "small: 'x'; give 8 bits, as 10, 0xa"),
    (of(match={}), "key hdr.probe.small: None; give 8 bits"),
    (of(match={"small": 4, "hdr.probe.small": 4}), "key hdr.probe.small: is given twice; remove one"),
    (of(match=7), "table_entries[0]: table I.everything: match: 7; give an object"),
    (of(match={"small": 4, "address": [1, 99]}), "key hdr.probe.address: prefix length 99; give 0 to 32"),
    (of({"table": "masked"}), "table_entries[0]: action_name: is missing; add it"),
    (of(EVERYTHING, 7), "table_entries[1]: 7; give an object"),
    (of(EVERYTHING, EVERYTHING), "((80, 90), 4, (4608, 65280), (167772672, 24)) is given twice; remove one"),
    (of(prioritee=3), "table_entries[0]: 'prioritee': is not known; call it 'priority', or remove it"),
    *(
        (
            of(priority=one),
            f"table I.everything: priority: {one!r}; give a positive integer, since entries can ",
        )
        for one in (None, 0, -1, "high", True, 1 << 31)
    ),
    (
        of({**PREFIX, "priority": "high"}),
        "table I.prefix: priority: 'high'; leave it out, since entries cannot overlap",
    ),
    ({"table_entries": 5}, "table_entries: 5; give a list of objects"),
    ({"tabel_entries": []}, "'tabel_entries': is not known; call it 'table_entries', or remove it"),
    ({"zzz": []}, "'zzz': is not known; use target, p4info, bmv2_json, table_entries, "),
    (GROUP, "multicast_group_entries[0]: egress_port: 511; give 0 to 510, since 511 drops packets"),
    (SESSION, "clone_session_entries[0]: replicas[0]: egress_port: is missing; add it"),
    ('{"table_entries": [], "table_entries": []}', "entries: table_entries: is given twice; remove one"),
    ('{"table_entries": [{"match": {"a": 1, "a": 1}}]}', "entries: a: is given twice; remove one"),
    ("{", "; give a runtime.json of p4lang's tutorials, or .stf in UTF-8"),
    (b"\xff", "; give a runtime.json of p4lang's tutorials, or .stf in UTF-8"),
    ("add everything small:1 in_everything(id:1)", "I.everything: priority: None; give one before the "),
    ("add prefix address:1 in_prefix(id:1) x", "line 1: table prefix: 'x' follows the action; remove it"),
    ("add prefix address:1 address:2 in_prefix(id:1)", "line 1: address: is given twice; remove one"),
    ("add prefix address:1 in_prefix(id:1, id:2)", "line 1: id: is given twice; remove one"),
    ("add x", "line 1: add: is not known or incomplete"),
    ("\nadd prefix address:1", "line 2: table prefix: 'address:1' has no action"),
    ("jump 1 2", "line 1: jump: is not known or incomplete; use add"),
    ("packet 1 012", "line 1: packet: 3 hexadecimal digits; give two"),
]


@pytest.mark.parametrize(("content", "problem"), WRONG)
def test_wrong_entries(switch, tmp_path, content, problem):
    with pytest.raises(SoftswitchError) as error:
        entries_of(switch, tmp_path, content)
    assert str(error.value).startswith(f"{tmp_path / 'entries'}: ")
    assert problem in str(error.value)


def test_random_changes_of_files_raise_only_errors_of_the_softswitch(switch, tmp_path):
    rng, path = random.Random(3), tmp_path / "file"
    everything = json.dumps(of(EVERYTHING, EVERYTHING))
    texts = [STF.encode(), everything.encode(), pcap_of(b"abc", b"d")]
    changes = [b"", b"\0", b"9", b"[", b"{", b":", b"null", b"-1", b"\xff", b" "]
    for _ in range(400):
        data = bytearray(rng.choice(texts))
        for _ in range(rng.randrange(1, 5)):
            place = rng.randrange(len(data))
            data[place : place + rng.randrange(3)] = rng.choice(changes)
        path.write_bytes(data)
        for read in (lambda: load_entries(path, switch), lambda: read_pcap(path, 1)):
            with suppress(SoftswitchError):
                read()


def pcap_of(*packets, order="<", magic=0xA1B23C4D, link_type=1, missing=0):
    header = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 1 << 16, link_type)
    records = (struct.pack(f"{order}IIII", 1, 5_000, len(p), len(p) + missing) + p for p in packets)
    return header + b"".join(records)


@pytest.mark.parametrize(("order", "magic", "us"), [("<", 0xA1B23C4D, 5), (">", 0xA1B2C3D4, 5_000)])
def test_pcap(tmp_path, order, magic, us):
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap_of(b"abc", b"", order=order, magic=magic))
    assert read_pcap(path, 3) == [(3, b"abc", 10**6 + us), (3, b"", 10**6 + us)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n\r\r\n", "is not pcap; convert pcapng by `editcap -F pcap IN OUT`"),
        (pcap_of()[:10], "ends within its header; copy the whole file"),
        (pcap_of(), "has no packets; capture some"),
        (pcap_of(b"abc", b"d")[:-18], "ends within packet 1; copy the whole file"),
        (pcap_of(b"abc", b"d")[:-3], "ends within packet 2; copy the whole file"),
        (pcap_of(b"abc", missing=2), "packet 1: has 3 of 5 bytes; capture whole packets, as `tcpdump -s 0`"),
        (pcap_of(b"abc", link_type=101), "has link type 101; capture Ethernet, link type 1"),
    ],
)
def test_wrong_pcap(tmp_path, content, problem):
    path = tmp_path / "x.pcap"
    path.write_bytes(content)
    with pytest.raises(SoftswitchError) as error:
        read_pcap(path, 3)
    assert str(error.value).startswith(f"{path}: {problem}")


def test_packet_digits():
    assert packet_bytes("0x01 02:Ff\n") == b"\x01\x02\xff"


def test_tables_that_observe_are_not_offered(tmp_path):
    switch = Tracer(load(P4 / "router.json")).switch
    with pytest.raises(SoftswitchError, match=r"'x'; give one of .*acl, .*by_port, .*routes, .*routes6$"):
        entries_of(switch, tmp_path, of({**ROUTE, "table": "x"}))


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
        (["--packet", "00", "--device-id", "2"], "--switch: is missing; --device-id and --tls are for a"),
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
    for content, problem in (
        ("no", "not JSON"),
        ("{}", "has no pipelines, so it is not BMv2 JSON"),
        ('{"pipelines": {}}', "has no pipeline named ingress; compile for v1model"),
        ('{"pipelines": [{"name": "main_control"}]}', "has no pipeline named ingress; compile for v1model"),
    ):
        path.write_text(content)
        for command in (["trace", "--packet", "00"], ["graph"]):
            done = peelsum("switch", command[0], str(path), *command[1:])
            assert (done.returncode, done.stdout) == (2, "")
            assert problem in done.stderr


def test_the_command_prints_text_or_json(tmp_path):
    path = tmp_path / "routes.json"
    path.write_text(json.dumps({"table_entries": [{**ROUTE, "match": {}}]}))
    packet = ["--packet", frame(b"x").hex()]
    command = ["switch", "trace", str(P4 / "router.json"), "--entries", str(path), *packet]
    text, document = peelsum(*command), peelsum(*command, "--json")
    (trace,) = json.loads(document.stdout)
    assert trace["packets"][0]["port"] == 2
    assert "leaves: 43 bytes at port 2" in text.stdout
    assert "key hdr.ipv4.dst=10.0.0.2 (lpm)" in text.stdout

"""Job descriptions of one switch and of racks: what they say, and one line for each mistake."""

import doctest
import re

import pytest

from peelsum.control import RacksDescription, description, read_description
from peelsum.control.description import parse_description
from peelsum.control.errors import DescriptionError
from peelsum.control.session import pipeline_schema
from peelsum.wire import Level

MINIMAL = """
[job]
id = 1
workers = 2
[ports]
server = 9
workers = [1, 2]
"""


RACKS = """
[job]
id = 1
workers = 3
[spine]
p4runtime = "10.0.0.1:9559"
server = 9
[[racks]]
p4runtime = "10.0.0.2:9559"
uplink = 8
spine_port = 0
workers = [1, 2]
[[racks]]
p4runtime = "10.0.0.3:9559"
uplink = 8
spine_port = 1
workers = [1]
"""


def test_what_is_left_out_has_a_default():
    found = parse_description(MINIMAL)
    assert (found.job.window, found.job.timeout_s) == (512, 30)
    assert (found.switch.p4runtime, found.switch.device_id) == ("127.0.0.1:9559", 1)
    assert (found.switch.pipeline_lanes, found.switch.age_limit_ms) == (256, None)
    assert found.ports.workers == (1, 2)


def test_addresses_of_real_hosts():
    text = (
        MINIMAL
        + """
[switch]
address = {mac = "02:00:00:00:00:fe", ip = "10.0.0.254"}
[hosts.1]
mac = "02:0:0:0:0:1"
ip = "10.0.0.1"
"""
    )
    found = parse_description(text)
    assert (found.hosts["1"].mac, found.hosts["1"].ip) == (0x020000000001, 0x0A000001)
    assert found.switch.address.mac == 0x0200000000FE


def test_what_each_switch_gets():
    found = parse_description(RACKS)
    assert isinstance(found, RacksDescription)
    assert found.rack_sizes == (2, 1)
    spine, first, second = found.plans()
    assert (spine.level, spine.expected_mask, spine.up_port) == (Level.SPINE, 0b11, 9)
    assert (spine.group, spine.return_ports) == ((0, 1), {0: 0, 1: 0, 32: 1})
    assert (first.level, first.expected_mask, first.up_port) == (Level.LEAF, 0b11, 8)
    assert [(m.port, m.mask, m.first_worker) for m in second.members] == [(1, 1, 32)]
    assert second.switch.p4runtime == "10.0.0.3:9559"


def test_workers_that_are_left_keep_their_ports():
    racks = parse_description(RACKS)
    assert [plan.group for plan in racks.with_workers([0, 2]).plans()] == [(0, 1), (1,), (1,)]
    spine, second = racks.with_workers([2]).plans()
    assert (spine.expected_mask, spine.group, spine.return_ports) == (1, (1,), {0: 1})
    assert (second.switch.p4runtime, second.group) == ("10.0.0.3:9559", (1,))
    assert racks.with_workers([2]).job.workers == 1
    (plan,) = parse_description(MINIMAL).with_workers([1]).plans()
    assert (plan.group, plan.expected_mask, plan.up_port) == ((2,), 1, 9)


def test_the_example_is_one():
    assert doctest.testmod(description) == (0, 2)


def test_hosts_of_a_rack():
    address = 'address = {mac = "2:0:0:0:0:fe", ip = "10.0.0.254"}\n'
    text = RACKS.replace('p4runtime = "10.0.0.3:9559"\n', 'p4runtime = "10.0.0.3:9559"\n' + address)
    text += '[racks.hosts.1]\nmac = "2:0:0:0:0:1"\nip = "10.0.0.9"\n'
    spine, first, second = parse_description(text).plans()
    assert (spine.hosts, first.hosts) == ({}, {})
    assert second.hosts[1].ip == 0x0A000009


ROUTES = "[1, 2]\n[switch.routes]\n"
REFUSED = [
    (("id = 1", "id = 0"), "job.id: 0 is out of range; use more than 0"),
    (("id = 1", 'id = "1"'), "job.id: '1': input should be a valid integer"),
    (("id = 1", ""), "job.id: is missing"),
    (("workers = 2", "workers = 33"), "job.workers: 33 is out of range; use 32 or less"),
    (("workers = 2", "workers = 3"), r"ports.workers: \[1, 2\]: lists 2 ports for job.workers = 3"),
    (("workers = 2", "workers = 2\ntimeout_s = inf"), "job.timeout_s: inf: input should be a finite number"),
    (("workers = 2", "workers = 2\nwindows = 5"), "job.windows: is not a field of a job description"),
    (("[1, 2]", "[1, 1]"), "ports: 1: is used 2 times"),
    (("[1, 2]", "[1, 255]"), "ports.workers.1: 255: port 255 is reserved by the switch"),
    (("[1, 2]", "[1, 512]"), "ports.workers.1: 512 is out of range; use less than 511"),
    (("[1, 2]", "[1, 2]\n[switch]\npipeline_lanes = 31"), "switch.pipeline_lanes: 31: is not compiled"),
    (
        ("[1, 2]", "[1, 2]\n[switch]\np4runtime = 'here'"),
        "switch.p4runtime: 'here': give the address as host:port",
    ),
    (
        ("[1, 2]", "[1, 2]\n[switch]\np4runtime = '::1:9559'"),
        r"switch.p4runtime: '::1:9559': .* example \[::1\]:9559",
    ),
    (
        ("[1, 2]", "[1, 2]\n[hosts.3]\nmac='2:0:0:0:0:1'\nip='10.0.0.1'"),
        "hosts.3: this job does not use that port; use one of",
    ),
    (
        ("[1, 2]", "[1, 2]\n[hosts.01]\nmac='2:0:0:0:0:1'\nip='10.0.0.1'"),
        "hosts.01: this job does not use that port; use one of",
    ),
    (("[1, 2]", "[1, 2]\n[hosts.1]\nmac='2:0:0:0:0:1'\nip='10.0.0.1'"), "switch.address: is missing"),
    (
        ("[1, 2]", "[1, 2]\n[switch.bridge]\n'2:0:0:0:0:1' = 1\n'02:0:0:0:0:1' = 2"),
        "switch.bridge: .* has an address twice, in two spellings; list it once",
    ),
    (("[1, 2]", "[1, 2]\n" + "a." * 16_000 + "a = 1"), "line 8: has a key of more than 16 parts"),
    (("[1, 2]", "[1, 2]\n" + "#" * (1 << 18)), "is longer than 262,144 characters; shorten it"),
    (("[1, 2]", "[1, 2]\n[hosts.1]\nmac=5\nip='10.0.0.1'"), "hosts.1.mac: .* six bytes"),
    (("[1, 2]", "[1, 2]\n[hosts.1]\nmac='2:0:0:0:0:1'\nip='10.0.0'"), "hosts.1.ip: .* IPv4 address"),
    (
        ("[1, 2]", ROUTES + "'10.0.1.0/24' = {port = 1, mac = '2:0:0:0:0:1'}"),
        "switch.address: is missing; routes need a source address",
    ),
    (
        ("[1, 2]", ROUTES + "'10.0.1.1/24' = {port = 1, mac = '2:0:0:0:0:1'}"),
        r"switch.routes.10.0.1.1/24\S*: .* IPv4 prefix without host bits, as 10.0.1.0/24",
    ),
    (("[1, 2]", ROUTES + "'10.0.1.0/24' = {port = 1}"), r"switch.routes.10.0.1.0/24.mac: is missing"),
    (("[job]", "[job"), "is not TOML"),
    (("workers = 2", "wokers = 2"), "job.wokers: is not a field of a job description; call it 'workers'"),
    (("[ports]", "[port]"), "port: is not a field of a job description; call it 'ports', or remove it"),
    (
        ("[1, 2]", "[1, 2]\n[switch]\naddress={maac='2'}"),
        "switch.address.maac: .* call it 'mac', or remove it",
    ),
    (("id = 1", "id = 1\ncolour = 3"), "job.colour: .*; use one of id, workers, .*, or remove it"),
]
RACKS_REFUSED = [
    (("workers = 3", "workers = 4"), "racks: list 3 workers for job.workers = 4; give each worker a port"),
    (("workers = 3", "workers = 1025"), "job.workers: 1025 is out of range; use 1024 or less"),
    (("spine_port = 1", "spine_port = 0"), r"spine\.ports: 0: is used 2 times"),
    (("workers = [1, 2]", "workers = [1, 8]"), r"racks\.0\.ports: 8: is used 2 times"),
    (("workers = [1]", "workers = []"), r"racks\.1\.workers: \[\]: must list at least 1"),
    (("10.0.0.3", "10.0.0.2"), r"racks\.1\.p4runtime: '10.0.0.2:9559': is racks\.0 already"),
    (("server = 9", "server = 9\npipeline_lanes = 32"), r"racks\.0\.pipeline_lanes: 256: spine has 32"),
    (("server = 9", "server = 9\npipeline_lanes = 31"), r"spine\.pipeline_lanes: 31: is not compiled"),
    (("[spine]", "[top]"), "spine: is missing|top: is not a field"),
    (("uplink = 8", "uplink = 255"), r"racks\.0\.uplink: 255: port 255 is reserved by the switch"),
    (
        ("workers = [1, 2]", "workers = [1, 2]\nhosts = {1 = {mac = '2:0:0:0:0:1', ip = '10.0.0.1'}}"),
        r"racks\.0\.address: is missing",
    ),
    (('[spine]\np4runtime = "10.0.0.1:9559"\nserver', "[spine]\nsever"), "spine.sever: .* call it 'server'"),
]


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [(MINIMAL, *case) for case in REFUSED] + [(RACKS, *case) for case in RACKS_REFUSED],
    ids=lambda part: part[1][:40] if isinstance(part, tuple) else "",
)
def test_each_validation_error_is_one_line_with_field_and_value(text, change, message):
    assert change[0] in text
    with pytest.raises(DescriptionError) as error:
        parse_description(text.replace(*change, 1), "job.toml")
    assert "\n" not in str(error.value)
    assert re.match(f"job.toml: ({message})", str(error.value)), str(error.value)


def full_bridge(count):
    rows = "".join(f"'2:0:0:0:{one >> 8:x}:{one & 255:x}' = 1\n" for one in range(count))
    return f"{MINIMAL}[switch.bridge]\n{rows}"


def full_routes(count):
    route = "'10.{}.{}.0/24' = {{port = 1, mac = '2:0:0:0:0:1'}}\n"
    rows = "".join(route.format(one >> 8, one & 255) for one in range(count))
    address = "[switch]\naddress = {mac = '2:0:0:0:0:fe', ip = '10.0.0.254'}\n"
    return f"{MINIMAL}{address}[switch.routes]\n{rows}"


@pytest.mark.parametrize(
    ("table", "text", "besides"),
    [
        pytest.param("bridge", full_bridge, 1, id="bridge"),
        pytest.param("routes", full_routes, 0, id="routes"),
    ],
)
def test_a_description_may_fill_the_switch_s_table(files, table, text, besides):
    """besides: rows that are not of the description, as that for broadcasts."""
    most = pipeline_schema(*files).tables[table].size - besides
    assert len(getattr(parse_description(text(most)).switch, table)) == most
    with pytest.raises(DescriptionError, match=f"switch.{table}: lists {most + 1}; list at most {most}$"):
        parse_description(text(most + 1))


def test_files(tmp_path):
    path = tmp_path / "job.toml"
    with pytest.raises(DescriptionError, match=r"job.toml: No such file"):
        read_description(path)
    path.write_bytes(b"\xff")
    with pytest.raises(DescriptionError, match="not UTF-8"):
        read_description(path)
    path.write_text(MINIMAL)
    assert read_description(path).job.id == 1

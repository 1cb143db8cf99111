"""Topologies as data: the built-in ones, both file forms, the tutorials' links, and validation errors."""

import json
import re

import pytest

from peelsum.control import RacksDescription
from peelsum.control.description import parse_description
from peelsum.topology import TopologyError, description
from peelsum.topology.description import (
    TopologyDescriptionError,
    job_description,
    parse,
    read,
    worker_numbers,
)

AT = {"s1": "127.0.0.1:1", "s2": "127.0.0.1:2", "s3": "127.0.0.1:3"}

PAIR = {
    "hosts": {"h1": {}, "h2": {}, "h3": {}},
    "switches": {"s1": {}},
    "links": [["h1", "s1-p1"], ["h2", "s1-p2"], ["s1-p3", "h3"]],
    "job": {"workers": ["h1", "h2"], "server": "h3"},
}


def changed(**parts):
    return json.dumps({**PAIR, **parts})


def test_a_star_has_its_workers_at_the_first_ports_and_the_server_behind_them():
    star = read("star")
    assert star.attachments == {f"h{port}": ("s1", port) for port in range(1, 6)}
    assert [(port, end) for port, _, end in star.cables("s1")] == [(n, f"h{n}") for n in range(1, 6)]
    assert (star.job.workers, star.job.server) == (("h1", "h2", "h3", "h4"), "h5")


def test_two_racks_do_one_job_with_its_server_at_a_third_switch_above():
    racks = read("two_racks")
    switches = {host: switch for host, (switch, _) in racks.attachments.items()}
    assert switches == {"h1": "s1", "h2": "s1", "h3": "s2", "h4": "s2", "h5": "s3"}
    ends = {name: [end for _, _, end in racks.cables(name)] for name in ("s1", "s3")}
    assert ends == {"s1": ["h1", "h2", "s3-p1"], "s3": ["s1-p3", "s2-p3", "h5"]}
    assert racks.trunks["s1", "s3"] == (3, 1)
    assert worker_numbers(racks, racks.job) == {"h1": 0, "h2": 1, "h3": 32, "h4": 33}
    told = parse_description(job_description(racks, racks.job, AT, 64, addressed=True))
    assert isinstance(told, RacksDescription)
    assert (told.rack_sizes, told.worker_ports, told.server_port) == ((2, 2), (1, 2, 1, 2), 3)
    assert [(rack.uplink, rack.spine_port) for rack in told.racks] == [(3, 1), (3, 2)]
    places = sorted((plan.switch.p4runtime, plan.switch.device_id) for plan in told.plans())
    assert places == [("127.0.0.1:1", 1), ("127.0.0.1:2", 2), ("127.0.0.1:3", 3)]  # as `up` starts them


def test_addresses_are_numbered_where_none_are_given():
    hosts = {"h1": {}, "h2": {"ip": "10.9.9.9/16", "mac": "AA:00:00:00:00:0b"}, "h3": {}}
    topology = parse(changed(hosts=hosts), "a.json")
    assert topology.address_of("h1") == ("02:00:00:00:00:01", "10.0.0.1/24")
    assert topology.address_of("h2") == ("aa:00:00:00:00:0b", "10.9.9.9/16")
    assert topology.address_of("s1") == ("02:00:00:00:ff:fe", "10.0.0.254/24")


@pytest.mark.parametrize(
    ("latency", "milliseconds"), [("0", 0), (7, 7), ("2ms", 2), ("500us", 0.5), ("1.5 s", 1500)]
)
def test_links_are_read_as_the_tutorials_write_them(latency, milliseconds):
    links = [["h1", "s1-p1"], ["h2", "s1-p2", latency, 50], ["s1-p3", "h3"]]
    link = parse(changed(links=links), "a.json").links[1]
    assert (link.latency_ms, link.rate_mbit, link.loss) == (milliseconds, 50, 0)


def test_toml_and_json_say_the_same(tmp_path):
    text = """
        links = [["h1", "s1-p1"], ["h2", "s1-p2"], ["s1-p3", "h3"]]
        hosts = {h1 = {}, h2 = {}, h3 = {}}
        switches = {s1 = {}}
        job = {workers = ["h1", "h2"], server = "h3"}
    """
    path = tmp_path / "pair.toml"
    path.write_text(text)
    assert read(str(path)) == parse(json.dumps(PAIR), "pair.json")


def test_rates_are_of_the_ports_at_both_ends_and_have_switches_mark():
    topology = read("two_racks")
    slow = [
        link.model_copy(update={"rate_mbit": 100.0}) if "s3-p1" in link.ends else link
        for link in topology.links
    ]
    topology = topology.model_copy(update={"links": tuple(slow)})
    rates = {name: [link.rate_mbit for _, link, _ in topology.cables(name)] for name in ("s1", "s2", "s3")}
    assert rates == {"s1": [None, None, 100.0], "s2": [None] * 3, "s3": [100.0, None, None]}
    text = job_description(topology, topology.job, AT, 512, addressed=False)
    asked = parse_description(text, "job").plans()
    assert [plan.switch.queue_depth for plan in asked] == [64, 64, None]


def test_every_switch_knows_the_port_towards_every_host():
    topology = read("two_racks")
    macs = [f"02:00:00:00:00:{host:02x}" for host in range(1, 6)]
    ports = {"s1": [1, 2, 3, 3, 3], "s2": [3, 3, 1, 2, 3], "s3": [1, 1, 2, 2, 3]}
    for name, expected in ports.items():
        assert topology.bridge(name) == dict(zip(macs, expected, strict=True))
    text = job_description(topology, topology.job, AT, 512, addressed=True)
    spine, *racks = parse_description(text, "job").plans()
    for plan, name in ((spine, "s3"), (racks[0], "s1"), (racks[1], "s2")):
        assert list(plan.switch.bridge.values()) == [topology.bridge(name)[mac] for mac in plan_macs(plan)]


def plan_macs(plan):
    """The addresses that a switch bridges, as a topology writes them."""
    return [mac.to_bytes(6, "big").hex(":") for mac in plan.switch.bridge]


MAC, IP, TWO = "02:00:00:00:00:aa", "10.0.0.77", {"switches": {"s1": {}, "s2": {}}}


def given(h1=None, h2=None, h3=None):
    """The three hosts, with what is given of them."""
    return {"hosts": {"h1": h1 or {}, "h2": h2 or {}, "h3": h3 or {}}}


PROGRAMMED = {"workers": ["h1", "h2"], "server": "h3", "program": "counting.json"}
REFUSED = [
    ({"hosts": {"h1": {"ip": "10.0.0"}}}, "hosts.h1.ip: '10.0.0': must be an IPv4 address"),
    ({"hosts": {"h1": {"mac": "1:2"}}}, "hosts.h1.mac: '1:2': must be six bytes"),
    ({"hosts": {**PAIR["hosts"], "h4": {}}}, "hosts: 'h4': has no link; plug it"),
    ({"hosts": {**PAIR["hosts"], "h 4": {}}}, "hosts: 'h 4': must be a short word"),
    ({"switches": {"s1": {}, "h1": {}}}, "hosts: 'h1': is a switch's name, too"),
    ({"switches": {"s1": {"runtime_json": "a"}}}, "switches.s1.runtime_json: is not a field of a topology"),
    ({"switches": {"much_too_long": {}}}, "switches: 'much_too_long': must be a short word"),
    ({"links": [["h1", "h2"]]}, "links.0: h1 to h2: joins two hosts; put a switch"),
    ({"links": [["h1", "s2-p1"]]}, "links.0: 's2-p1': is neither a host nor a switch port"),
    ({"links": [["h1", "s1-p255"]]}, "links.0: 's1-p255': port 255 is out of range; use 1 to 254"),
    ({"links": [["h1", "s1-p1"], ["h2", "s1-p1"]]}, "links: 's1-p1': has 2 links; give it one"),
    ({"links": [*PAIR["links"], ["s1-p4", "s1-p5"]]}, "links.3: s1-p4 to s1-p5: closes a ring"),
    (
        {
            "switches": {"s1": {}, "s2": {}, "s3": {}},
            "links": [*PAIR["links"], ["s1-p4", "s2-p4"], ["s2-p5", "s3-p5"], ["s3-p6", "s1-p6"]],
        },
        "links.5: s3-p6 to s1-p6: closes a ring: s3 and s1 are joined already",
    ),
    ({"links": [["h1"]]}, "links.0: ['h1']: must be "),
    ({"links": [["h1", "s1-p1", "soon"]]}, "links.0.latency_ms: 'soon': must be milliseconds"),
    ({"links": [["h1", "s1-p1", 0, 40000]]}, "links.0.rate_mbit: 40000 is out of range; use "),
    ({"links": [{"ends": ["h1", "s1-p1"], "loss": 1}]}, "links.0.loss: 1 is out of range; use less than 1"),
    ({"job": {"workers": ["h1"], "server": "h3"}}, "job.workers: "),
    ({"job": {"workers": ["h1", "h9"], "server": "h3"}}, "job: 'h9': is not a host; use one of h1, h2, h3"),
    ({"job": {"workers": ["h1", "h2"], "server": "h2"}}, "job: 'h2': has 2 roles"),
    ({"job": {"workers": ["h1", "h2"], "server": "h3", "lanes": 7}}, "job.lanes: 7: is not compiled"),
    ({"job": {**PROGRAMMED, "lanes": 0}}, "job.lanes: 0: is out of range; use 1 to 2048"),
    ({"job": {**PROGRAMMED, "lanes": 2049}}, "job.lanes: 2049: is out of range; use 1 to 2048"),
    (
        {
            **TWO,
            "links": [["h1", "s1-p1"], ["h2", "s1-p2"], ["h3", "s2-p1"], ["s1-p3", "s2-p2"]],
            "job": PROGRAMMED,
        },
        "job.program: runs on one switch; put all",
    ),
    (given({"mac": MAC}, {"mac": MAC.upper()}), f"h2: {MAC}: is also that of h1; give each its own"),
    (given({"ip": f"{IP}/24"}, {"ip": f"{IP}/16"}), f"h2: {IP}: is also that of h1; give each its own"),
    (given(h3={"ip": "10.0.0.254"}), "s1: 10.0.0.254: is also that of h3; give each its own"),
    (
        {**TWO, "links": [["h1", "s1-p1"], ["h2", "s2-p2"], ["s1-p3", "h3"], ["s1-p4", "s2-p4"]]},
        "job: its workers are behind s1, s2, its server behind s1: put all behind",
    ),
    (
        {**TWO, "links": [["h1", "s1-p1"], ["h2", "s1-p2"], ["h3", "s2-p1"]]},
        "job: its workers are behind s1, its server behind s2: put all",
    ),
    # The nearest name is told: of a table in a list, in a table of tables, and in one that may be missing.
    (
        {"links": [{"ends": ["h1", "s1-p1"], "rate_mbits": 1}]},
        "links.0.rate_mbits: is not a field of a topology; call it 'rate_mbit', or remove it",
    ),
    (given({"macs": MAC}), "hosts.h1.macs: is not a field of a topology; call it 'mac', or remove it"),
]


@pytest.mark.parametrize(("parts", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_right_is_named(parts, message):
    with pytest.raises(TopologyDescriptionError) as refusal:
        parse(changed(**parts), "net.json")
    assert str(refusal.value).startswith(f"net.json: {message}")


NESTED = "[" * 100_000 + "]" * 100_000
TABLE = "must be a table, in JSON an object"


@pytest.mark.parametrize(
    ("source", "text", "message"),
    [
        ("net.json", "[1, 2]", f"net.json: [1, 2]: {TABLE}, with the fields of a topology"),
        ("net.json", '{"hosts": {"h1": 3}}', f"net.json: hosts.h1: 3: {TABLE}"),
        (
            "net.json",
            '{"hosts": {}, "switches": {"s1": {}}, "links": 3}',
            "net.json: links: 3: must be a list",
        ),
        (
            "net.toml",
            "hosts = {",
            "net.toml: cannot be read: Invalid initial character for a key part (at end of document); "
            "correct it there",
        ),
        ("net.toml", f"hosts = {NESTED}", "net.toml: has lists or tables nested too deeply"),
        ("net.json", NESTED, "net.json: has lists or tables nested too deeply"),
        ("ring", None, "topology: ring: is neither star, two_racks nor a .toml or .json file"),
        ("absent.toml", None, "absent.toml: No such file or directory; give the path"),
    ],
    ids=lambda value: value and value[:20],
)
def test_a_file_that_has_no_network_is_named(source, text, message):
    with pytest.raises(TopologyDescriptionError) as refusal:
        read(source) if text is None else parse(text, source)
    assert str(refusal.value).startswith(message)


def test_every_example_can_be_read(request):
    examples = list((request.config.rootpath / "examples/topologies").iterdir())
    assert examples
    for path in examples:
        assert description.read(str(path)).hosts


def test_the_reference_describes_a_network_that_can_be_started(request):
    """Over UDP, all links of a switch have the same losses; over veth there are no bursts of them."""
    page = (request.config.rootpath / "docs/reference/topology.md").read_text(encoding="utf-8")
    (text,) = (block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "hosts.h1" in block)
    links = parse(text, "page.toml").links
    assert {(link.loss, link.loss_burst, link.late) for link in links} == {(0.02, None, 0.0)}


def test_a_switch_sums_32_workers_and_no_more():
    topology = description.star(32)
    assert list(worker_numbers(topology, topology.job).values()) == list(range(32))
    with pytest.raises(ValueError, match="job: 33 workers are behind s1; a switch sums 32 at most"):
        description.star(33)


def test_hosts_and_switches_share_254_addresses():
    def network(hosts, switches):
        names = [f"h{number}" for number in range(hosts)]
        links = [[name, f"s{number // 250}-p{number % 250 + 1}"] for number, name in enumerate(names)]
        all_switches = {f"s{number}": {} for number in range(switches)}
        return json.dumps({"hosts": {name: {} for name in names}, "switches": all_switches, "links": links})

    topology = parse(network(251, 3), "net.json")
    assert topology.address_of("s2")[1] == "10.0.0.252/24"
    with pytest.raises(TopologyError, match="hosts: 251: are too many"):
        parse(network(251, 4), "net.json")

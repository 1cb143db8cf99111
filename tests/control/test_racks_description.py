import doctest
import re

import pytest

from peelsum.control import JobDescription, RacksDescription, racks
from peelsum.control.errors import DescriptionError
from peelsum.control.plan import Level
from peelsum.control.racks import parse_description

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


def test_the_example_is_one():
    assert doctest.testmod(racks) == (0, 2)


def test_a_file_without_racks_is_of_one_switch():
    found = parse_description("[job]\nid=1\nworkers=2\n[ports]\nserver=9\nworkers=[1,2]")
    assert isinstance(found, JobDescription)
    (plan,) = found.plans()
    assert (plan.level, plan.expected_mask, plan.group) == (Level.ONLY, 0b11, (1, 2))


def test_switches_of_one_server_are_told_apart_by_their_device_id():
    text = RACKS.replace('"10.0.0.3:9559"', '"10.0.0.2:9559"\ndevice_id = 2')
    assert [plan.switch.device_id for plan in parse_description(text).plans()] == [1, 1, 2]


def test_hosts_of_a_rack():
    address = 'address = {mac = "2:0:0:0:0:fe", ip = "10.0.0.254"}\n'
    text = RACKS.replace('p4runtime = "10.0.0.3:9559"\n', 'p4runtime = "10.0.0.3:9559"\n' + address)
    text += '[racks.hosts.1]\nmac = "2:0:0:0:0:1"\nip = "10.0.0.9"\n'
    spine, first, second = parse_description(text).plans()
    assert (spine.hosts, first.hosts) == ({}, {})
    assert second.hosts[1].ip == 0x0A000009


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("workers = 3", "workers = 4"),
            "racks: list 3 workers for job.workers = 4; give each worker a port",
        ),
        (("workers = 3", "workers = 1025"), "job.workers: 1025: input should be less than or equal to 1024"),
        (("spine_port = 1", "spine_port = 0"), r"spine\.ports: 0: is used 2 times"),
        (("spine_port = 1", "spine_port = 9"), r"spine\.ports: 9: is used 2 times"),
        (("workers = [1, 2]", "workers = [1, 8]"), r"racks\.0\.ports: 8: is used 2 times"),
        (("workers = [1]", "workers = []"), r"racks\.1\.workers: \[\]: must list at least 1"),
        (("10.0.0.3", "10.0.0.2"), r"racks\.1\.p4runtime: '10.0.0.2:9559': is racks\.0 already"),
        (("10.0.0.3", "10.0.0.1"), r"racks\.1\.p4runtime: '10.0.0.1:9559': is spine already"),
        (("server = 9", "server = 9\npipeline_lanes = 32"), r"racks\.0\.pipeline_lanes: 256: spine has 32"),
        (("server = 9", "server = 9\npipeline_lanes = 31"), r"spine\.pipeline_lanes: 31: is not compiled"),
        (("server = 9", ""), r"spine\.server: is missing"),
        (("[spine]", "[top]"), "spine: is missing|top: is not a field"),
        (("uplink = 8", "uplink = 255"), r"racks\.0\.uplink: 255: port 255 is the switch's own"),
        (
            ("workers = [1, 2]", "workers = [1, 2]\nhosts = {1 = {mac = '2:0:0:0:0:1', ip = '10.0.0.1'}}"),
            r"racks\.0\.address: is missing",
        ),
    ],
)
def test_each_validation_error_is_one_line_with_field_and_value(change, message):
    assert change[0] in RACKS
    with pytest.raises(DescriptionError) as error:
        parse_description(RACKS.replace(*change, 1), "job.toml")
    assert "\n" not in str(error.value)
    assert re.match(f"job.toml: ({message})", str(error.value)), str(error.value)

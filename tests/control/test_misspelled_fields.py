"""An unknown field is reported with the nearest known name, before missing fields are."""

import pytest

from peelsum.control.errors import DescriptionError
from peelsum.control.racks import parse_description

JOB = """
[job]
id = 1
workers = 2
[switch]
address = {mac = "02:00:00:00:00:fe", ip = "10.0.0.254"}
[ports]
server = 9
workers = [1, 2]
[hosts.1]
mac = "02:0:0:0:0:1"
ip = "10.0.0.1"
"""
RACKS = """
[job]
id = 1
workers = 4
[spine]
server = 9
[[racks]]
uplink = 3
spine_port = 1
workers = [1, 2]
[[racks]]
uplink = 3
spine_port = 2
workers = [1, 2]
"""


@pytest.mark.parametrize(
    ("text", "right", "wrong", "message"),
    [
        (
            JOB,
            "workers = 2",
            "wokers = 2",
            "job.wokers: is not a field of a job description; call it 'workers'",
        ),
        (
            JOB,
            "[ports]",
            "[port]",
            "port: is not a field of a job description; call it 'ports', or remove it",
        ),
        (JOB, 'mac = "02:0:', 'mcc = "02:0:', "hosts.1.mcc: .* call it 'mac', or remove it"),
        (JOB, "{mac", "{maac", "switch.address.maac: .* call it 'mac', or remove it"),
        (JOB, "id = 1", "id = 1\ncolour = 3", "job.colour: .*; remove it or correct its name"),
        (RACKS, "uplink = 3", "uplnk = 3", "racks.0.uplnk: .* call it 'uplink', or remove it"),
        (RACKS, "[spine]\nserver", "[spine]\nsever", "spine.sever: .* call it 'server', or remove it"),
    ],
)
def test_the_nearest_name_is_told(text, right, wrong, message):
    assert right in text
    with pytest.raises(DescriptionError, match=message):
        parse_description(text.replace(right, wrong, 1), "job.toml")

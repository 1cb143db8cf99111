"""`peelsum top`: rates from two looks, and what it prints of a switch."""

from __future__ import annotations

import json

import pytest
from command_line import peelsum

from peelsum.cli.top import rates
from peelsum.control import Controller
from peelsum.control.description import parse_description
from peelsum.pipelines import pipeline
from peelsum.wire import Verdict

NONE = dict.fromkeys(Verdict, 0)
JOB = """
[job]
id = 7
workers = 2
[switch]
pipeline_lanes = 32
[ports]
workers = [1, 2]
server = 3
"""


def test_rates_are_what_grew_in_between():
    before = NONE | {Verdict.ABSORBED: 10, Verdict.UNKNOWN_JOB: 5}
    after = NONE | {Verdict.ABSORBED: 40, Verdict.COMPLETED: 15, Verdict.COLLIDED: 5, Verdict.UNKNOWN_JOB: 9}
    done = rates(before, after, 2.0)
    assert done.packets == 27
    assert done.summed == 0.9
    assert done.refused == {"unknown_job": 2, "collided": 2.5}


def test_a_pipeline_that_was_loaded_again_starts_at_nothing():
    done = rates(NONE | {Verdict.ABSORBED: 1000}, NONE | {Verdict.ABSORBED: 4}, 1.0)
    assert (done.packets, done.summed, done.refused) == (4, 1, {})


def test_nothing_happened():
    assert rates(NONE, NONE, 1.0).summed is None


@pytest.fixture
def switch(device, server):
    """A switch with a job, of which 3 packets were absorbed."""
    files = pipeline(32)
    with Controller.connect(server.address) as controller:
        controller.load_pipeline(files.json_path, files.p4info_path)
        controller.admit(parse_description(JOB), free_slots=False)
        device.switch.counters["PeelsumIngress.verdicts"].write(Verdict.ABSORBED, 3, 300)
        yield server.address


def test_it_prints_a_table(switch):
    done = peelsum("top", "--p4runtime", switch, "--count", "2", "--every", "0.05")
    assert done.returncode == 0, done.stderr
    assert "32 lanes, 0 packets/s, - summed in the switch" in done.stdout
    assert "refused or passed on unsummed: none" in done.stdout


def test_it_prints_json(switch):
    done = peelsum("top", "--p4runtime", switch, "--count", "2", "--every", "0.05", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines == [{"jobs": [7], "packets": 0, "summed": None, "refused": {}}] * 2


def test_it_says_what_is_wrong(switch):
    assert "--every: 0 is out of range" in peelsum("top", "--every", "0").stderr
    nowhere = peelsum("top", "--p4runtime", "192.0.2.1:9559")
    assert "beyond loopback" in nowhere.stderr

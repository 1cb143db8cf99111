"""Fixtures: a controller connected to the softswitch, and a thread that runs the data plane."""

import sys
from pathlib import Path

import pytest
from device_state import forwarding
from patience import PATIENCE_S
from primary import Primary
from restartable_switch import RestartableSwitch

from peelsum.control import v1model
from peelsum.control.description import parse_description
from peelsum.control.session import Session
from peelsum.pipelines import pipeline

sys.path.insert(0, str(Path(__file__).parent))  # tests import helpers from one another

DESCRIPTION = """
[job]
id = 3
workers = 2
window = 64
[switch]
pipeline_lanes = 32
age_limit_ms = 640
[ports]
server = 9
workers = [4, 5]
"""


@pytest.fixture(autouse=True)
def answers_may_be_late(monkeypatch):
    """What is connected answers in its own time, on a busy machine too; only connecting has its own limit."""

    def read_pipeline(session, _refresh=Session.refresh):
        session._timeout_s = PATIENCE_S
        _refresh(session)

    monkeypatch.setattr(v1model, "_ATTEMPTS", 200)
    monkeypatch.setattr(Session, "refresh", read_pipeline)


@pytest.fixture
def description():
    return parse_description(DESCRIPTION)


@pytest.fixture
def data_plane(device):
    """Forward the packets that the controller injects, until the test ends."""
    with forwarding([device]):
        yield


@pytest.fixture
def freed(monkeypatch):
    """Return the slots that a controller reset, each once even if it repeated the request."""
    slots = set()

    def reset_frames(wanted, lanes, request, _frames=v1model.reset_frames):
        slots.update(wanted)
        return _frames(wanted, lanes, request)

    monkeypatch.setattr(v1model, "reset_frames", reset_frames)
    return slots


@pytest.fixture(scope="session")
def files():
    found = pipeline(32)
    return found.json_path, found.p4info_path


@pytest.fixture
def controller(server, files, data_plane):
    """Return the primary, with the 32-lane pipeline just committed, on a switch with other traffic."""
    with Primary(server.address) as controller:
        assert controller.load_pipeline(*files)
        yield controller


@pytest.fixture(scope="module")
def switches():
    """Two switches; each test's first primary removes what the last one's left there."""
    made = [RestartableSwitch() for _ in range(2)]
    yield made
    for switch in made:
        switch.close()

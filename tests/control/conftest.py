"""A controller connected to the softswitch, with a thread that runs the data plane."""

import sys
from pathlib import Path

import pytest
from device_state import forwarding
from embedded_server import device, server

from peelsum.control import Controller, JobDescription, resets
from peelsum.pipelines import pipeline

sys.path.insert(0, str(Path(__file__).parent))  # tests import helpers from one another

__all__ = ["controller", "data_plane", "description", "device", "files", "freed", "server"]

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


@pytest.fixture
def description():
    return JobDescription.parse(DESCRIPTION)


@pytest.fixture
def data_plane(device):
    """Forwards what the controller injects, until the test is over."""
    with forwarding([device]):
        yield


@pytest.fixture
def freed(monkeypatch):
    """The slots that a controller asked to have freed, each once however often it had to ask."""
    slots = set()

    def reset_frames(wanted, lanes, _frames=resets.reset_frames):
        slots.update(wanted)
        return _frames(wanted, lanes)

    monkeypatch.setattr(resets, "reset_frames", reset_frames)
    return slots


@pytest.fixture(scope="session")
def files():
    found = pipeline(32)
    return found.json_path, found.p4info_path


@pytest.fixture
def controller(server, files, data_plane):
    """The primary, with the 32-lane pipeline freshly committed, on a switch that forwards."""
    with Controller.connect(server.address) as controller:
        assert controller.load_pipeline(*files)
        yield controller

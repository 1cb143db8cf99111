"""A controller connected to the embedded target, with a thread that runs the data plane."""

import select
import socket
from threading import Thread

import pytest
from embedded_server import device, server
from p4runtime_client import process

from peelsum.control import Controller, JobDescription
from peelsum.target.artifacts import pipeline

__all__ = ["controller", "data_plane", "description", "device", "files", "server"]

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
    ours, theirs = socket.socketpair()

    def run():
        while theirs not in (ready := select.select([device, theirs], [], [])[0]):
            if ready and (frames := device.take_injected()):
                process(device, frames)

    thread = Thread(target=run)
    thread.start()
    yield
    ours.close()
    thread.join()
    theirs.close()


@pytest.fixture(scope="session")
def files():
    found = pipeline(32)
    return found.json_path, found.p4info_path


@pytest.fixture
def controller(server, files):
    """The primary, with the 32-lane pipeline freshly committed."""
    with Controller.connect(server.address) as controller:
        assert controller.load_pipeline(*files)
        yield controller

"""A P4Runtime server over the softswitch in its Python mode, as fixtures for conftest.py to import."""

import pytest

from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.runtime.device import Device


@pytest.fixture
def device():
    device = Device(mode="python")
    yield device
    device.close()


@pytest.fixture
def server(device):
    server = serve(device, "127.0.0.1:0")
    yield server
    server.stop()

"""A P4Runtime server over the softswitch in its Python mode, as fixtures for conftest.py to import."""

import pytest


@pytest.fixture
def device():
    # Only tests that use gRPC load them.
    import verified_once  # noqa: F401 (replaces what verifies programs)

    from peelsum.softswitch.runtime.device import Device

    device = Device(mode="python")
    yield device
    device.close()


@pytest.fixture
def server(device):
    from peelsum.softswitch.p4runtime import serve

    server = serve(device, "127.0.0.1:0")
    yield server
    server.stop()

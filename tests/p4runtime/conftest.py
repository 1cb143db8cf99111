"""A P4Runtime server over the embedded target in its Python mode, with the test program or without."""

from pathlib import Path

import pytest
from finsy.p4schema import P4Schema
from p4runtime_client import Client

from peelsum.target.device import Device
from peelsum.target.p4runtime import serve

P4 = Path(__file__).parent / "p4"


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


@pytest.fixture
def connect(server):
    """Makes clients: connect(election_id)."""
    clients = []

    def make(election_id=1):
        clients.append(Client(server.address, election_id))
        return clients[-1]

    yield make
    for client in clients:
        client.channel.close()


@pytest.fixture(scope="session")
def schema():
    """The test program's P4Info and JSON."""
    return P4Schema(P4 / "every_match_kind.p4info.txtpb", (P4 / "every_match_kind.json").read_bytes())


@pytest.fixture
def client(connect, schema):
    """The primary, with the test program committed."""
    client = connect()
    client.become_primary()
    client.set_pipeline(schema.get_pipeline_config())
    return client

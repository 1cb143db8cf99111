"""Fixtures: a P4Runtime server of the softswitch in Python mode, with or without the test program."""

from pathlib import Path

import pytest
from finsy.p4schema import P4Schema
from p4runtime_client import Client

P4 = Path(__file__).parent / "p4"


@pytest.fixture
def connect(server):
    """Return a function that makes clients: connect(election_id)."""
    clients = []

    def make(election_id=1):
        clients.append(Client(server.address, election_id))
        return clients[-1]

    yield make
    for client in clients:
        client.channel.close()


@pytest.fixture(scope="session")
def schema():
    """Return the test program's P4Info and JSON."""
    return P4Schema(P4 / "every_match_kind.p4info.txtpb", (P4 / "every_match_kind.json").read_bytes())


@pytest.fixture
def client(connect, schema):
    """Return the primary, with the test program committed."""
    client = connect()
    client.become_primary()
    client.set_pipeline(schema.get_pipeline_config())
    return client

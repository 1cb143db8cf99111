"""Fixtures: a P4Runtime server of the softswitch in Python mode, with or without the test program."""

import pytest
from p4runtime_client import Client
from p4runtime_entities import schema_of


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
    return schema_of("every_match_kind")


@pytest.fixture
def client(connect, schema):
    """Return the primary, with the test program committed."""
    client = connect()
    client.become_primary()
    client.set_pipeline(schema.get_pipeline_config())
    return client

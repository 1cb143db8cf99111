"""A trace with the program and the entries of a running switch."""

from pathlib import Path

import pytest
from command_line import peelsum
from finsy.p4schema import P4Schema
from frames import frame
from p4runtime_client import Client

from peelsum.softswitch import SoftswitchError
from peelsum.softswitch.inspection.running import tracer_of_switch

P4 = Path(__file__).parents[1] / "p4runtime" / "p4"


@pytest.fixture
def running(server, device):
    """Return the address of a server whose switch has a route, a default action, a group and a session."""
    schema = P4Schema(P4 / "every_match_kind.p4info.txtpb", (P4 / "every_match_kind.json").read_bytes())
    client = Client(server.address)
    client.become_primary()
    client.set_pipeline(schema.get_pipeline_config())
    tables = {name.rpartition(".")[2]: table for name, table in device.switch.tables.items()}
    names = {action.name.rpartition(".")[2]: action.name for action in device.switch.program.actions.values()}
    tables["route"].insert(((0x0A010000, 16),), names["forward"], (300,))
    tables["filter"].set_default(names["drop"])
    device.switch.groups.set(5, [(1, 2), (3, 4)])
    device.switch.sessions.set(6, [(7, 0)])
    yield server.address
    client.channel.close()


def test_entries_of_a_running_switch(running, device):
    switch = tracer_of_switch(running, 1, None).switch
    for name, table in device.switch.tables.items():
        assert switch.tables[name].entries() == table.entries()
        assert switch.tables[name].default == table.default
    assert switch.groups.get(5) == ((1, 2), (3, 4))
    assert switch.sessions.get(6) == ((7, 0),)


def test_the_command_uses_them(running):
    done = peelsum("switch", "trace", "--switch", running, "--packet", frame(b"", dst_ip=0x0A010203).hex())
    assert "entry 10.1.0.0/16 => " in done.stdout, done.stderr


def test_errors_name_the_address(server):
    with pytest.raises(SoftswitchError, match=f"^{server.address}: .*; is it a switch with a program"):
        tracer_of_switch(server.address, 1, None)
    done = peelsum("switch", "trace", "--switch", server.address, "--device-id", "9", "--packet", "00")
    assert done.returncode == 2
    assert "no device 9" in done.stderr

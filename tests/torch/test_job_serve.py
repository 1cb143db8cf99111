"""`peelsum job serve`: what it does not serve is said in one line; the rest is in test_elastic_restart.py."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from peelsum.cli.app import app

RACKS = """
[job]
id = 1
workers = 2
[spine]
server = 2
p4runtime = "127.0.0.1:2"
[[racks]]
uplink = 3
spine_port = 1
workers = [1, 4]
p4runtime = "127.0.0.1:1"
"""


@pytest.fixture
def refused():
    """What the command says, with these arguments, before it ends with status 1 or 2."""

    def said(*arguments):
        outcome = CliRunner().invoke(app, ["job", "serve", *arguments])
        assert outcome.exit_code in (1, 2)
        return outcome.output

    return said


def test_racks(refused, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(RACKS)
    said = refused(str(path), "--udp", "h:1")
    assert "racks: are not served; admit the job with `peelsum job admit`" in said


def test_a_description_that_is_not_there(refused):
    assert "nowhere.toml" in refused("nowhere.toml", "--udp", "h:1")


def test_addresses_that_are_none(refused):
    assert "give the switch as host:port" in refused("job.toml", "--udp", "here")
    assert "give the address to listen at as host:port" in refused(
        "job.toml", "--udp", "h:1", "--listen", "9560"
    )

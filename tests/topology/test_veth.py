"""Wires in this process's own namespace, BMv2 on them, and the errors where a tool is missing."""

import sys
from pathlib import Path

import networks
import pytest

from peelsum.topology import TopologyError, bmv2, namespaces


def alone(scene: str) -> str:
    """Run a function of this file in a process with its own namespace; return its result."""
    return str(networks.alone(__file__, scene))


def list_interfaces() -> str:
    return " ".join(sorted(path.name for path in Path("/proc/sys/net/ipv4/neigh").iterdir()))


def start_bmv2() -> str:
    namespaces.add_wire("switch1", "host1")
    with bmv2.running({1: "switch1"}) as address:
        return address


def test_a_namespace_starts_with_nothing_but_lo() -> None:
    assert alone("list_interfaces") == "lo"


@pytest.mark.skipif(not bmv2.available(), reason="simple_switch_grpc is not on PATH")
def test_bmv2_starts_and_ends() -> None:
    assert alone("start_bmv2").startswith("127.0.0.1:")


def test_a_missing_bmv2_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert not bmv2.available()
    with (
        pytest.raises(TopologyError, match="simple_switch_grpc: not found on PATH; install"),
        bmv2.running({}),
    ):
        pass


def test_a_bmv2_that_ends_at_once_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    fake = tmp_path / bmv2.BINARY
    fake.write_text(f"#!{sys.executable}\nraise SystemExit(3)\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TopologyError, match="simple_switch_grpc: ended with status 3"), bmv2.running({}):
        pass


def test_a_missing_ip_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TopologyError, match="ip: not found on PATH; install iproute2"):
        namespaces.enter_own_namespace()


if __name__ == "__main__":
    networks.main(globals())

"""BMv2 as a process: its start and end, a Thrift port for each switch, and its last words in errors."""

import re
import socket
import sys

import pytest

from peelsum.topology import TopologyError, bmv2

#: Behaves like BMv2: help, a Thrift server at `default` unless told otherwise, a gRPC server. Never ends.
FAKE = f"""#!{sys.executable}
import signal, socket, sys
common, separator, target = " ".join(sys.argv[1:]).partition(" -- ")
if "--help" in common:
    print({{help!r}})
    raise SystemExit
options = dict(zip(common.split()[1::2], common.split()[2::2]))  # the first one has no value
if {{thrift}}:
    try:
        thrift = socket.create_server(("127.0.0.1", int(options.get("--thrift-port", {{default}}))))
    except OSError:
        print("Thrift returned an exception when trying to bind to port", file=sys.stderr)
        print("The exception is: Could not bind: Address already in use", file=sys.stderr, flush=True)
        signal.pause()
elif "--thrift-port" in options:
    raise SystemExit("unrecognised option '--thrift-port'")
grpc = socket.create_server(("127.0.0.1", int(target.split(":")[1].split()[0])))
signal.pause()
"""
#: Of BMv2's help, where it was built with Thrift.
LISTED = "  --thrift-port arg   TCP port on which to run the Thrift runtime server"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """install(...) puts a BMv2 on PATH, alone."""

    def put(*, thrift, listed, default):
        fake = tmp_path / bmv2.BINARY
        fake.write_text(FAKE.format(help=LISTED if listed else "Options:", thrift=thrift, default=default))
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        bmv2._has_thrift_option.cache_clear()

    return put


@pytest.fixture
def taken():
    """A port at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_two_switches_with_thrift_come_up_side_by_side(install, taken):
    install(thrift=True, listed=True, default=taken)
    with bmv2.running({}, device_id=1) as (first, _), bmv2.running({}, device_id=2) as (second, _):
        assert first != second


def test_a_bmv2_without_thrift_is_given_no_port_for_it(install, taken):
    install(thrift=False, listed=False, default=taken)
    with bmv2.running({}) as (address, _):
        assert address.startswith("127.0.0.1:")


def test_a_bmv2_that_does_not_listen_is_quoted(install, taken, monkeypatch):
    monkeypatch.setattr(bmv2, "_START_TIMEOUT_S", 3.0)
    install(thrift=True, listed=False, default=taken)
    with pytest.raises(TopologyError) as caught, bmv2.running({}):
        pass
    assert re.fullmatch(
        r"simple_switch_grpc: simple_switch_grpc does not listen on 127.0.0.1:\d+ after 3 s; it said: "
        r"Thrift returned .* port \| The exception is: Could not bind: Address already in use; "
        r"check whether another program uses one of its ports",
        str(caught.value),
    )


def test_a_missing_bmv2_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert not bmv2.available()
    with (
        pytest.raises(TopologyError, match="simple_switch_grpc: not found on PATH; install"),
        bmv2.running({}),
    ):
        pass


def test_a_bmv2_that_ends_at_once_is_reported(monkeypatch, tmp_path):
    fake = tmp_path / bmv2.BINARY
    fake.write_text(f"#!{sys.executable}\nraise SystemExit(3)\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TopologyError, match="simple_switch_grpc: ended with status 3"), bmv2.running({}):
        pass

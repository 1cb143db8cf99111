"""Networks that `peelsum up` runs for a test, commands in their hosts, and reasons to skip."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

from peelsum.softswitch.ports.xdp import XdpSocket
from peelsum.topology import bmv2, veth
from peelsum.topology.records import MARKER

ROOT = Path(__file__).parents[2]
PEELSUM = (sys.executable, "-m", "peelsum.cli")
#: Two workers and a server at one switch.
PAIR = {
    "hosts": {"h1": {}, "h2": {}, "h3": {}},
    "switches": {"s1": {}},
    "links": [["h1", "s1-p1"], ["h2", "s1-p2"], ["h3", "s1-p3"]],
    "job": {"workers": ["h1", "h2"], "server": "h3", "lanes": 32},
}


def _refusal() -> str:
    """Why this machine has no network namespaces for us; empty if it has."""
    if shutil.which("nsenter") is None:
        return "nsenter is not on PATH"
    program = "from peelsum.topology.veth import enter_own_namespace as e; e()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2]


REFUSAL = _refusal()
needs_namespaces = pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL or "has them")
needs_nftables = pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not on PATH")


def needs(links: str, switch: str) -> None:
    """Skip where the machine lacks what such a network is made of."""
    if links == "veth" and REFUSAL:
        pytest.skip(REFUSAL)
    if switch == "bmv2" and not bmv2.available():
        pytest.skip("simple_switch_grpc is not on PATH")


@pytest.fixture
def own_folder(tmp_path, monkeypatch) -> None:
    """Keep the records of this test's networks in a folder of its own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(MARKER, raising=False)


@pytest.fixture
def pair(tmp_path) -> str:
    """Return the path of a description of PAIR."""
    path = tmp_path / "pair.json"
    path.write_text(json.dumps(PAIR))
    return str(path)


class Up(subprocess.Popen):
    """`peelsum up` as a process. `said` is the last object that it printed, at first that it is ready."""

    def hear(self, timeout_s: float = PATIENCE_S) -> dict[str, object]:
        """The next object."""
        assert select.select([self.stdout], [], [], timeout_s)[0], "nothing in time"
        line = self.stdout.readline()
        assert line.startswith(b"{"), self.stderr.read()
        self.said = json.loads(line)
        return self.said

    def kill_part(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the process that plays a switch or the server."""
        os.kill(self.said["processes"][name], number)


@contextlib.contextmanager
def up(topology: str, links: str, switch: str = "embedded", *options: str):
    """A network that is ready."""
    command = [*PEELSUM, "up", topology, "--links", links, "--switch", switch, "--json", *options]
    # Unbuffered, so that `select` tells what `readline` has not taken.
    process = Up(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    try:
        process.hear()
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        process.stdout.close()
        process.stderr.close()


def alone(file: str, scene: str) -> Any:
    """Run a function of a test file in a new process, by `main`, and return its result.

    A process cannot leave a namespace it has entered. Skips where there are no namespaces.
    """
    if REFUSAL:
        pytest.skip(REFUSAL)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, file, scene]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(scenes: dict[str, Any]) -> None:
    """Run the function named on the command line in a namespace of its own; print its result as JSON."""
    veth.enter_own_namespace()
    print(json.dumps(scenes[sys.argv[1]]()))


def xdp_refusal() -> dict[str, str]:
    """Why this machine's veth has no AF_XDP; empty if it has. A scene for `alone`."""
    veth.add_wire("switch1", "host1")
    try:
        XdpSocket("switch1").close()
    except OSError as error:
        return {"why": f"no AF_XDP: {error.strerror}"}
    return {"why": ""}


def exec_in(host: str, *command: str) -> subprocess.Popen[str]:
    """A command in a host."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*PEELSUM, "exec", host, "--", *command], text=True, **pipes)


def said(process: subprocess.Popen[str]) -> str:
    """Return all output of a process, which must end with status 0."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return out.strip()

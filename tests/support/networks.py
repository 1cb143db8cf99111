"""Networks that `peelsum up` runs for a test, commands in their hosts, and reasons to skip."""

import contextlib
import errno
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from patience import PATIENCE_S

from peelsum.softswitch.ports.xdp import XdpSocket
from peelsum.topology import bmv2, namespaces
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


def _refusal():
    """Why this machine has no network namespaces for us; empty if it has."""
    for tool in ("nsenter", "unshare", "ip"):
        if shutil.which(tool) is None:
            return f"{tool} is not on PATH"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip()


REFUSAL = _refusal()
needs_namespaces = pytest.mark.skipif(bool(REFUSAL), reason=REFUSAL or "has them")
needs_nftables = pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not on PATH")


def needs(links, switch):
    """Skip where the machine lacks what such a network is made of."""
    if links == "veth" and REFUSAL:
        pytest.skip(REFUSAL)
    if switch == "bmv2" and not bmv2.available():
        pytest.skip("simple_switch_grpc is not on PATH")


@pytest.fixture(params=["softswitch", "bmv2"])
def switch(request):
    """Return each of the switches that are here, for networks of namespaces."""
    needs("veth", request.param)
    return request.param


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Keep the records of this test's networks in a folder of its own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(MARKER, raising=False)


@pytest.fixture
def pair(tmp_path):
    """Return the path of a description of PAIR."""
    path = tmp_path / "pair.json"
    path.write_text(json.dumps(PAIR))
    return str(path)


class Up(subprocess.Popen):
    """`peelsum up` as a process. `said` is the last object that it printed, at first that it is ready."""

    def hear(self, timeout_s=PATIENCE_S):
        """The next object."""
        assert select.select([self.stdout], [], [], timeout_s)[0], "nothing in time"
        line = self.stdout.readline()
        assert line.startswith(b"{"), self.stderr.read()
        self.said = json.loads(line)
        return self.said

    def kill_part(self, name, number=signal.SIGKILL):
        """Send a signal to the process that plays a switch or the server."""
        os.kill(self.said["processes"][name], number)


@contextlib.contextmanager
def up(topology, links, switch="softswitch", *options):
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


@functools.lru_cache(maxsize=1)
def _server(file):
    """Start the process that runs the scenes of a test file; it ends when its standard input is closed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, file], text=True, env=environment, **pipes)


def alone(file, scene):
    """Run a function of a test file in a process and a network namespace of its own; return its result.

    The process is forked from one that has imported the file, which takes longer than most scenes. Skips
    where there are no namespaces.
    """
    if REFUSAL:
        pytest.skip(REFUSAL)
    server = _server(file)
    server.stdin.write(json.dumps([scene, dict(os.environ)]) + "\n")
    server.stdin.flush()
    assert select.select([server.stdout], [], [], PATIENCE_S)[0], f"{scene}: no result"
    result, failure = json.loads(server.stdout.readline() or '[null, "the process of scenes has ended"]')
    assert not failure, failure
    return result


def main(scenes):
    """Run the functions that `alone` asks for, each in a fork of this process."""
    for line in sys.stdin:
        scene, environment = json.loads(line)
        if (child := os.fork()) == 0:
            os.environ.clear()
            os.environ.update(environment)
            print(json.dumps(_outcome(scenes[scene])), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(json.dumps([None, f"{scene}: ended with {status}"]), flush=True)


def _outcome(scene):
    """Return what a scene returns in a new namespace, or its traceback."""
    try:
        namespaces.enter_own_namespace()
        return scene(), ""
    except BaseException:
        return None, traceback.format_exc()


def xdp_refusal():
    """Why this machine's veth has no AF_XDP; empty if it has. A scene for `alone`."""
    namespaces.add_wire("switch1", "host1")
    try:
        XdpSocket("switch1").close()
    except OSError as error:
        return {"why": f"no AF_XDP: {error.strerror}"}
    return {"why": ""}


def exec_in(host, *command):
    """A command in a host."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*PEELSUM, "exec", host, "--", *command], text=True, **pipes)


def said(process):
    """Return all output of a process, which must end with status 0."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return out.strip()


def summed_at(*hosts):
    """Run the example's sum in hosts at the same time; return what their workers print."""
    workers = [exec_in(host, sys.executable, str(ROOT / "examples/sum.py")) for host in hosts]
    return [said(worker) for worker in workers]


class RawInterface:
    """A non-blocking AF_PACKET socket on one interface."""

    def __init__(self, name):
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._sock.bind((name, 3))
        self._sock.setblocking(False)

    def fileno(self):
        """Return the file descriptor, for select."""
        return self._sock.fileno()

    def close(self):
        """Close the socket."""
        self._sock.close()

    def send(self, frames):
        """Send frames, uint8[n, length]; return how many of them the kernel accepted."""
        for sent, frame in enumerate(frames):
            try:
                self._sock.send(frame.data)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    raise
                return sent
        return len(frames)

    def receive_into(self, rows):
        """Receive frames into the rows of uint8[n, length]; return how many. Drop frames of other lengths."""
        count = 0
        while count < len(rows):
            try:
                length = self._sock.recv_into(rows[count].data)
            except BlockingIOError:
                break
            count += length == rows.shape[1]
        return count

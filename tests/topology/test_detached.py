"""`peelsum up --detach` returns when the network runs, or names the reason why it does not."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from networks import PEELSUM, exec_in, own_folder, said
from patience import PATIENCE_S

from peelsum import messages
from peelsum.cli import network
from peelsum.processes import progress
from peelsum.topology import TopologyError
from peelsum.topology.network import UdpNetwork
from peelsum.topology.records import Record, folder

__all__ = ["own_folder"]

pytestmark = pytest.mark.usefixtures("own_folder")

SETTINGS = {"switch": "softswitch", "links": "udp"}
SETTINGS |= dict.fromkeys(("restart", "detach", "json", "child"), False)
PAIR = {"hosts": {"h1": {}}, "switches": {"s1": {}}, "links": [["h1", "s1-p1"]]}


def detached(topology, *options):
    command = [*PEELSUM, "up", topology, "--detach", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.fixture
def pair(tmp_path):
    path = tmp_path / "pair.json"
    path.write_text(json.dumps(PAIR))
    yield str(path)
    subprocess.run([*PEELSUM, "down"], check=True)


@pytest.mark.system
def test_it_returns_when_commands_can_run_and_the_network_goes_on(pair):
    done = detached(pair)
    assert done.returncode == 0
    assert re.fullmatch(r"(starting the network: \d+ s\n)*", done.stderr)
    assert done.stdout.splitlines()[-1].startswith("run commands with `peelsum exec h1 -- ...`")
    record = Record.read()
    assert os.getsid(record.up.pid) != os.getsid(0)
    assert said(exec_in("h1", "echo", "here")) == "here"
    again = detached(pair)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == "peelsum: up: another network is up; end it with `peelsum down`\n"
    assert record.up.running
    subprocess.run([*PEELSUM, "down"], check=True)
    assert not record.up.running
    assert (folder() / "up.out").read_text() == done.stdout


def test_a_failure_without_a_reason_is_one_line(pair):
    """Where the disk is full, the process that starts the network cannot write why it ends."""
    words = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *PEELSUM, "up", pair, "--detach"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    reason = r"up\.err: has no reason why `peelsum up` ended with status \d+; see whether the disk is full\n"
    assert re.search(f"{reason}$", done.stderr)
    assert (done.returncode, done.stdout) == (2, "")


def test_that_it_starts_is_told_without_a_terminal(pair, monkeypatch, capsys):
    shown = []

    def start(_):
        deadline = time.monotonic() + PATIENCE_S
        while not shown and time.monotonic() < deadline:
            shown.extend(capsys.readouterr().err.splitlines())
            time.sleep(0.01)
        raise TopologyError("enough")

    monkeypatch.setattr(progress, "INTERVAL_S", 0.01)
    monkeypatch.setattr(messages, "FIRST_AFTER_S", 0.0)
    monkeypatch.setattr(UdpNetwork, "_start", start)
    with pytest.raises(SystemExit):
        network.up(topology=pair, **SETTINGS)
    assert shown == ["starting the network: 0 s"]


def test_a_signal_while_the_network_starts_is_no_normal_end(monkeypatch, pair):
    monkeypatch.setattr(UdpNetwork, "_start", lambda _: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as end:
        network.up(topology=pair, **SETTINGS)
    assert end.value.code == 128 + signal.SIGTERM


@pytest.mark.system
def test_ctrl_c_ends_what_is_not_up_yet(pair):
    program = (
        "import sys\nfrom peelsum.cli import network\n"
        "def interrupted(process, *rest):\n    print(process.pid, flush=True)\n    raise KeyboardInterrupt\n"
        "network._wait_until_ready = interrupted\nfrom peelsum.cli.main import main\nmain()\n"
    )
    command = [sys.executable, "-c", program, "up", pair, "--detach"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (130, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)

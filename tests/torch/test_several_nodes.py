"""The commands of docs/how-to/train-on-several-nodes.md: each network namespace is one of its machines."""

from __future__ import annotations

import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from machines import ip, machines
from networks import needs_namespaces
from terminals import Terminal

pytest.importorskip("torch", reason="torch is not installed")

from peelsum.topology.namespaces import inside

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/how-to/train-on-several-nodes.md").read_text()
PATIENCE_S = 600.0
ADDRESSES = {"switch": "10.0.0.254", "node 0": "10.0.0.1", "node 1": "10.0.0.2"}


@pytest.fixture
def connected():
    """Three machines at one bridge, which is the first one's."""
    with machines(*ADDRESSES) as found:
        hub = found["switch"]
        ip(hub, "link", "add", "eth0", "type", "bridge")
        for name, machine in found.items():
            if machine != hub:
                end = name.replace(" ", "")
                ip(hub, "link", "add", end, "type", "veth", "peer", "eth0", "netns", str(machine))
                ip(hub, "link", "set", end, "master", "eth0", "up")
            ip(machine, "addr", "add", f"{ADDRESSES[name]}/24", "dev", "eth0")
            ip(machine, "link", "set", "eth0", "up")
        yield found


@pytest.fixture
def folder(tmp_path):
    """One for all machines, with the guide's job and the examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "job.toml").write_text(re.search(r"```toml\n(.*?)```", GUIDE, re.DOTALL)[1])
    return tmp_path


@pytest.mark.system
@needs_namespaces
@pytest.mark.skipif(shutil.which("ip") is None, reason="ip is not on PATH; it is in iproute2")
def test_the_guide(connected, folder):
    """Four ranks on two nodes; node 1 starts before node 0."""
    make, switch, serve, first, second = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    few = "--steps 2 --every 1"
    with ExitStack() as stack:

        def terminal(machine, typed):
            command = inside(connected[machine], "bash", "-e", "-c", typed)
            opened = Terminal(command, folder, PATIENCE_S)
            stack.callback(opened.close)
            return opened

        assert "worker/token: copy it" in terminal("switch", make).rest()
        running = terminal("switch", switch)
        running.wait_for("port 5 at 10.0.0.254:41005 (UDP)")
        serving = terminal("switch", serve)
        serving.wait_for("job 1: asked for at 10.0.0.254:9560")
        other = terminal("node 1", f"{second.strip()} {few}")
        shown = terminal("node 0", f"{first.strip()} {few}").rest()
        assert "parameters" not in other.rest()
        assert "; 4 ranks" in shown
        assert "step 2: loss " in shown
        assert re.search(r"parameters: \w{16}\nswitch: [1-9]", shown), shown
        for one in (serving, running):
            one.press_ctrl_c()
        assert "of 10.0.0.1\n" in serving.rest()
        running.rest()

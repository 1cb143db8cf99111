"""The commands of docs/how-to/aggregate-on-a-server.md: each network namespace is one of its machines."""

from __future__ import annotations

import configparser
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
GUIDE = (ROOT / "docs/how-to/aggregate-on-a-server.md").read_text()
PATIENCE_S = 600.0
HOSTS = ("host 0", "host 1")


@pytest.fixture
def connected():
    """An aggregator and two hosts with links to it."""
    with machines("aggregator", *HOSTS) as found:
        for number, name in enumerate(HOSTS, 1):
            host, link = found[name], f"eth{number}"
            ends = [
                "type",
                "veth",
                "peer",
                "eth0",
                "address",
                f"02:00:00:00:00:0{number}",
                "netns",
                str(host),
            ]
            ip(found["aggregator"], "link", "add", link, *ends)
            ip(host, "address", "add", f"10.0.0.{number}/24", "dev", "eth0")
            ip(host, "link", "set", "eth0", "up")
        yield found


@pytest.fixture
def folder(tmp_path):
    """One for all machines, with the guide's job and the examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "job.toml").write_text(re.search(r"```toml\n(.*?)```", GUIDE, re.DOTALL)[1])
    return tmp_path


def privileges_of_the_unit():
    """The command that leaves a process of root's only what deploy/systemd/interfaces.conf gives."""
    unit = configparser.RawConfigParser()
    unit.optionxform = str
    unit.read_string((ROOT / "deploy/systemd/interfaces.conf").read_text())
    names = unit["Service"]["CapabilityBoundingSet"].lower().replace("cap_", "+").split()
    assert unit["Service"]["AmbientCapabilities"] == unit["Service"]["CapabilityBoundingSet"]
    return ["setpriv", f"--bounding-set=-all,{','.join(names)}"]


@pytest.mark.system
@needs_namespaces
@pytest.mark.parametrize("lanes", [256, 2048])
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not on PATH; it is in util-linux")
def test_the_guide(connected, folder, lanes):
    """The switch is started again while the hosts train. 2,048 lanes are sent in jumbo frames."""
    if lanes == 2048:
        job = (folder / "job.toml").read_text()
        (folder / "job.toml").write_text(job.replace("pipeline_lanes = 256", "pipeline_lanes = 2048"))
    bridge, neighbour, _, make, switch, serve, train, _ = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    with ExitStack() as stack:

        def terminal(machine, typed, *before):
            command = inside(connected[machine], *before, "bash", "-e", "-c", typed)
            opened = Terminal(command, folder, PATIENCE_S)
            stack.callback(opened.close)
            return opened

        def start_switch():
            running = terminal("aggregator", switch, *privileges_of_the_unit())
            running.wait_for("port 3 at server0")
            return running

        mtu = 9000 if lanes == 2048 else 1500
        terminal("aggregator", bridge.replace("mtu 1500", f"mtu {mtu}")).rest()
        terminal("aggregator", bridge).rest()  # at the next start: nothing is left to do
        for host in HOSTS:
            terminal(host, f"ip link set eth0 mtu {mtu}\n{neighbour}").rest()
        terminal("aggregator", make).rest()
        running = start_switch()
        serving = terminal("aggregator", serve)
        serving.wait_for("job 1: asked for at 10.0.0.254:9560")
        few = " --steps 30 --every 1"
        other = terminal("host 1", train.replace("node-rank 0", "node-rank 1").strip() + few)
        first = terminal("host 0", train.strip() + few)
        first.wait_for("step 3: loss ")
        running.press_ctrl_c()
        running.rest()
        running = start_switch()
        shown = first.rest()
        assert "step 30: loss " in shown
        assert re.search(r"parameters: \w{16}\nswitch: [0-9]", shown), shown
        other.rest()
        for one in (serving, running):
            one.press_ctrl_c()
        assert "of 10.0.0.1\n" in serving.rest()
        running.rest()

"""The commands of the guides for several machines: each network namespace is one of a guide's machines."""

import configparser
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from machines import ip, machines
from networks import needs_namespaces
from terminals import Terminal

from peelsum.topology.namespaces import inside

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600.0
HOSTS = ("host 0", "host 1")
ADDRESSES = {"switch": "10.0.0.254", "node 0": "10.0.0.1", "node 1": "10.0.0.2"}
pytestmark = [
    pytest.mark.system,
    needs_namespaces,
    pytest.mark.skipif(shutil.which("ip") is None, reason="ip is not on PATH; it is in iproute2"),
]


@pytest.fixture
def guide(tmp_path):
    """Read a guide: its commands, and a function that types some on a machine.

    The machines share a folder, with the guide's job and the examples.
    """
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    with ExitStack() as stack:

        def read(name):
            text = (ROOT / f"docs/how-to/{name}.md").read_text()
            (tmp_path / "job.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])

            def terminal(machine, typed, *before):
                opened = Terminal(inside(machine, *before, "bash", "-e", "-c", typed), tmp_path, PATIENCE_S)
                stack.callback(opened.close)
                return opened

            return re.findall(r"```sh\n(.*?)```", text, re.DOTALL), terminal

        yield read


@pytest.fixture
def bridged():
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


def test_train_on_several_nodes(bridged, guide):
    """Four ranks on two nodes; node 1 starts before node 0."""
    (make, switch, serve, first, second), terminal = guide("train-on-several-nodes")
    few = "--steps 2 --every 1"
    assert "worker/token: copy it" in terminal(bridged["switch"], make).rest()
    running = terminal(bridged["switch"], switch)
    running.wait_for("port 5 at 10.0.0.254:41005 (UDP)")
    serving = terminal(bridged["switch"], serve)
    serving.wait_for("job 1: waiting for requests at 10.0.0.254:9560")
    other = terminal(bridged["node 1"], f"{second.strip()} {few}")
    shown = terminal(bridged["node 0"], f"{first.strip()} {few}").rest()
    assert "parameters" not in other.rest()
    assert "; 4 ranks" in shown
    assert "step 2: loss " in shown
    assert re.search(r"parameters: \w{16}\nswitch: [1-9]", shown), shown
    for one in (serving, running):
        one.press_ctrl_c()
    assert "of 10.0.0.1\n" in serving.rest()
    running.rest()


@pytest.fixture
def linked():
    """An aggregator and two hosts with links to it."""
    with machines("aggregator", *HOSTS) as found:
        for number, name in enumerate(HOSTS, 1):
            host, mac = found[name], f"02:00:00:00:00:0{number}"
            ends = ["type", "veth", "peer", "eth0", "address", mac, "netns", str(host)]
            ip(found["aggregator"], "link", "add", f"eth{number}", *ends)
            ip(host, "address", "add", f"10.0.0.{number}/24", "dev", "eth0")
            ip(host, "link", "set", "eth0", "up")
        yield found


def privileges_of_the_unit():
    """The command that leaves a process of root's only what deploy/systemd/interfaces.conf gives."""
    unit = configparser.RawConfigParser()
    unit.optionxform = str
    unit.read_string((ROOT / "deploy/systemd/interfaces.conf").read_text())
    names = unit["Service"]["CapabilityBoundingSet"].lower().replace("cap_", "+").split()
    assert unit["Service"]["AmbientCapabilities"] == unit["Service"]["CapabilityBoundingSet"]
    return ["setpriv", f"--bounding-set=-all,{','.join(names)}"]


@pytest.mark.parametrize("lanes", [256, 2048])
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not on PATH; it is in util-linux")
def test_aggregate_on_a_server(linked, guide, tmp_path, lanes):
    """The switch is started again while the hosts train. 2,048 lanes are sent in jumbo frames."""
    (bridge, neighbour, _, make, switch, serve, train, _), terminal = guide("aggregate-on-a-server")
    if lanes == 2048:
        job = (tmp_path / "job.toml").read_text()
        (tmp_path / "job.toml").write_text(job.replace("pipeline_lanes = 256", "pipeline_lanes = 2048"))
    aggregator = linked["aggregator"]

    def start_switch():
        running = terminal(aggregator, switch, *privileges_of_the_unit())
        running.wait_for("port 3 at server0")
        return running

    mtu = 9000 if lanes == 2048 else 1500
    terminal(aggregator, bridge.replace("mtu 1500", f"mtu {mtu}")).rest()
    terminal(aggregator, bridge).rest()  # at the next start: nothing is left to do
    for host in HOSTS:
        terminal(linked[host], f"ip link set eth0 mtu {mtu}\n{neighbour}").rest()
    terminal(aggregator, make).rest()
    running = start_switch()
    serving = terminal(aggregator, serve)
    serving.wait_for("job 1: waiting for requests at 10.0.0.254:9560")
    few = " --steps 30 --every 1"
    other = terminal(linked["host 1"], train.replace("node-rank 0", "node-rank 1").strip() + few)
    first = terminal(linked["host 0"], train.strip() + few)
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

"""The documentation's commands for training over a switch, run as they stand except on free ports."""

import re
import shutil
from pathlib import Path

import pytest
from free_ports import KeptPort, free_udp_base
from patience import PATIENCE_S
from terminals import Terminal

ROOT = Path(__file__).parents[2]
FEW_STEPS = "--steps 2 --every 1"


@pytest.fixture
def terminal(tmp_path):
    """Opens terminals, in a folder that has the examples; all are closed at the end, the last one first."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    opened = []

    def open_one(typed):
        local = {"GLOO_SOCKET_IFNAME": "lo", "XDG_RUNTIME_DIR": str(tmp_path)}
        opened.append(Terminal(["bash", "-e", "-c", typed], tmp_path, PATIENCE_S, **local))
        return opened[-1]

    yield open_one
    for one in reversed(opened):
        one.close()


@pytest.fixture
def by_hand(tmp_path, terminal):
    """The lines of three blocks of docs/reference/torch.md, one a terminal, with free ports and few steps."""
    text = (ROOT / "docs/reference/torch.md").read_text().partition("by hand, in three terminals")[2]
    lines = re.findall(r"```sh\n(.*)\n```", text)[:3]
    job = tmp_path / "examples" / "job.toml"
    with KeptPort() as p4runtime, KeptPort() as asked:
        job.write_text(job.read_text().replace("9559", str(p4runtime.number)))
        ports = {"41000": str(free_udp_base(3)), "9560": str(asked.number)}
        switch, serve, train = (re.sub("41000|9560", lambda at: ports[at[0]], line) for line in lines)
        yield (
            f"{switch} --p4runtime {p4runtime.address}",
            f"{serve.partition('#')[0]} --listen {asked.address}",
            f"{train} {FEW_STEPS}",
        )


def trained(shown: str, ranks: int) -> str:
    """The digest of the parameters, once all that a training shows is there."""
    assert f"; {ranks} ranks" in shown
    assert "step 2: loss " in shown
    assert "switch: " in shown
    return re.search(r"parameters: (\w{16})", shown)[1]


@pytest.mark.system
def test_three_terminals(by_hand, terminal):
    """Also a second training, with nothing but the job in the environment to tell it from one by gloo."""
    switch, serve, train = by_hand
    first = terminal(switch)
    first.wait_for("port 3 at ")
    second = terminal(serve)
    second.wait_for("job 1: asked for at ")
    digest = trained(terminal(train).rest(), 2)
    assert trained(terminal(train.replace("--sum switch", "")).rest(), 2) == digest
    second.press_ctrl_c()
    first.press_ctrl_c()


@pytest.mark.slow
def test_a_network_that_is_up(terminal, kept_port):
    """One torchrun for all ranks; then a process at each host. Their sums are the same bits."""
    network = terminal("peelsum up star")
    network.wait_for("run commands with")
    train = f"examples/train_lm.py {FEW_STEPS}"
    digest = trained(terminal(f"peelsum exec h1 -- torchrun --nproc-per-node 4 {train}").rest(), 4)
    network.wait_for("admitted again")
    port = f"MASTER_PORT={kept_port.number}"
    ranks = f"for w in 1 2 3 4; do {port} peelsum exec h$w -- python {train} & done; wait"
    assert trained(terminal(ranks).rest(), 4) == digest
    network.press_ctrl_c()

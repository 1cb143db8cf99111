"""The walk-through by hand, typed: its blocks run as they stand, but on free ports."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from free_ports import free_udp_base
from patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
UDP_BASE, P4RUNTIME = "41000", "9559"
#: Ports 1 to 3 of the switch.
PORTS = 3


@pytest.fixture
def blocks(tmp_path, kept_port):
    """Return the walk-through's shell blocks, one per terminal, in a folder with the examples."""
    section = (
        (ROOT / "docs/how-to/run-the-demo.md").read_text().partition("## By hand")[2].partition("\n## ")[0]
    )
    base = free_udp_base(PORTS)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    job = tmp_path / "examples" / "job.toml"
    job.write_text(job.read_text().replace(P4RUNTIME, str(kept_port.number)))
    found = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    typed = []
    for block in found:
        shifted = re.sub(rf"{UDP_BASE[:-1]}(\d)", lambda port: str(base + int(port[1])), block)
        typed.append(
            re.sub("peelsum (switch run|status)", rf"\g<0> --p4runtime {kept_port.address}", shifted)
        )
    return typed


@pytest.fixture
def terminal(tmp_path):
    """Yield a function that runs typed text in a new shell; all shells are closed at the end."""
    opened = []
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def open_one(typed):
        shell = subprocess.Popen(
            ["bash", "-e", "-c", typed],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        opened.append(shell)
        return shell

    yield open_one
    for shell in reversed(opened):
        if shell.poll() is None:
            os.killpg(shell.pid, 2)
        shell.communicate(timeout=PATIENCE_S)


def wait_for(shell, text):
    """Read a terminal's output until `text` is in it."""
    shown = ""
    while text not in shown:
        line = shell.stdout.readline()
        assert line, shown
        shown += line


@pytest.mark.system
def test_the_walk_through_by_hand(blocks, terminal):
    first, second, third = blocks
    wait_for(terminal(first), f"port {PORTS} at ")
    server = terminal(second)
    wait_for(server, "job 1: serving at")
    shown, _ = terminal(third).communicate(timeout=PATIENCE_S)
    for worker in (0, 1):
        assert f"worker {worker}: row 7 sums up to 3; 0.3% is not zero; " in shown
    assert re.search(r"completed\W+[1-9]", shown), shown
    assert "no jobs" not in shown
    assert server.wait(timeout=PATIENCE_S) == 0

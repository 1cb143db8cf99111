"""The demo as a user runs it: real processes, a real model, and every sum compared with gloo's."""

import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from command_line import peelsum
from patience import PATIENCE_S
from rich.progress import Progress

from peelsum.cli.demo import command

DEMO = [sys.executable, "-m", "peelsum.cli", "demo"]
#: Names of the tensors that the demo's model has.
TENSORS = 7


@pytest.fixture
def endless(tmp_path):
    """Yield a demo that would train for hours, once its five parts run: (process, the parts)."""
    command, environment = (
        [*DEMO, "--workers", "2", "--steps", "100000"],
        {**os.environ, "TMPDIR": str(tmp_path)},
    )
    demo = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
    deadline = time.monotonic() + PATIENCE_S
    while len(parts := psutil.Process(demo.pid).children(recursive=True)) < 5:
        assert time.monotonic() < deadline, "switch, controller, server and two workers did not start"
        assert demo.poll() is None, demo.stderr.read()
        signal.sigtimedwait([signal.SIGUSR1], 0.05)
    yield demo, parts
    demo.kill()
    demo.wait()
    demo.stderr.close()
    psutil.wait_procs(parts, timeout=PATIENCE_S)


@pytest.mark.system
def test_two_workers_with_loss_are_exact(tmp_path):
    """The demo's own process must not compile, because a compiler's callbacks would swallow Ctrl-C."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'demo' in sys.orig_argv: sys.modules['llvmlite'] = None\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [*DEMO, "--workers", "2", "--steps", "3", "--loss", "0.02", "--seed", "1", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["exact"] is True
    assert seen["tensors_checked"] == 2 * (2 * 3 * TENSORS)
    assert (seen["workers"], seen["steps"], seen["form"]) == (2, 3, "sketch")
    assert 1.3 * seen["candidates"] <= seen["cells"] < 1.4 * seen["candidates"]
    assert 0 <= seen["left_over"] < seen["candidates"] / 10
    assert 0 < seen["density"] * 3 * seen["elements"] < 2 * seen["candidates"]
    assert 1.2 < seen["over_lower_bound"] < 3, "in the first of three steps, a bit for each element"
    assert seen["bytes_ratio"] > 5
    sparse, dense = seen["sparse"], seen["dense"]
    assert sparse["loss_end"] < sparse["loss_start"] == dense["loss_start"]
    assert dense["loss_end"] == pytest.approx(sparse["loss_end"], rel=1e-3)
    assert dense["resends"] > sparse["resends"] > 0
    assert seen["chunks_at_server"] > 0
    assert seen["chunks_in_switch"] > seen["chunks_at_server"]


@pytest.mark.system
@pytest.mark.parametrize("form", ["compact", "auto"])
def test_another_form_is_as_exact(form):
    command = [*DEMO, "--workers", "2", "--steps", "3", "--form", form, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["exact"], seen["form"]) == (True, form)
    assert form == "auto" or (seen["candidates"], seen["cells"], seen["left_over"]) == (0, 0, 0)
    assert 1 <= seen["over_lower_bound"] < 3
    assert seen["bytes_ratio"] > 5


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_all_processes_and_frees_all_ports(endless, tmp_path, number):
    demo, parts = endless
    taken = [c for part in parts for c in part.net_connections("inet") if not c.raddr]
    assert {c.type for c in taken} == {socket.SOCK_STREAM, socket.SOCK_DGRAM}
    assert all(ipaddress.ip_address(c.laddr.ip.removeprefix("::ffff:")).is_loopback for c in taken)
    assert list(tmp_path.iterdir())
    demo.send_signal(number)
    assert demo.wait(timeout=PATIENCE_S) == 128 + number
    # What takes long on a busy machine may have been told before; the signal adds nothing.
    assert re.fullmatch(rb"(\S[^\n]*: \d+ s\b[^\n]*\n)*", demo.stderr.read())
    _, alive = psutil.wait_procs(parts, timeout=PATIENCE_S)
    assert not alive
    # A rank that ends while it imports torch may leave torch's own cache.
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith("torchinductor_")]
    for connection in taken:
        with socket.socket(connection.family, connection.type) as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, connection.type == socket.SOCK_STREAM)
            free.bind(tuple(connection.laddr))


@pytest.mark.system
def test_killed_demo_takes_its_processes_along(endless):
    demo, parts = endless
    demo.kill()
    _, alive = psutil.wait_procs(parts, timeout=PATIENCE_S)
    assert not alive


def test_a_worker_whose_demo_has_ended_does_not_compile_first():
    words = "--worker-id 0 --workers 2 --store none --steps 1 --seed 0 --form compact"
    command = [sys.executable, "-m", "peelsum.cli", "demo-worker", *words.split()]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == -signal.SIGTERM
    assert b"prepared" not in done.stdout


def test_steps_are_reported_without_a_terminal():
    lines, reports = [], SimpleNamespace(gather_reports=lambda: [{"loss": 1.0}])
    command._follow(reports, 2, Progress(disable=True), "training, dense", lines.append)
    assert lines == ["training, dense: 0 s, step 1 of 2", "training, dense: 0 s, step 2 of 2"]


def test_missing_torch_is_named(monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    done = peelsum("demo")
    assert done.returncode == 2
    assert done.stderr == (
        "peelsum: torch: is not installed; run: pip install 'peelsum[demo]' --extra-index-url "
        "https://download.pytorch.org/whl/cpu (without it pip fetches gigabytes for GPUs)\n"
    )

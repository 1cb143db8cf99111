"""Ctrl-C, SIGTERM and a closed terminal, at moments at which a signal is easily lost."""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest
from patience import PATIENCE_S

from peelsum.cli.demo.command import Processes
from peelsum.processes import Child
from peelsum.processes.user_errors import SIGNALS, InterruptContext, Interrupted, ending_signals

DEMO = [sys.executable, "-m", "peelsum.cli", "demo", "--workers", "2", "--steps", "100000"]
#: Put ahead of everything else in a process: Ctrl-C when the command line's own imports begin.
WHILE_IMPORTING = """\
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *rest):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""

#: Ctrl-C for all of `bench switch` as soon as a child of its runs any Python; the child first, which says so
#: if it hears. The tracker that Python itself starts looks after itself.
WHILE_A_CHILD_STARTS = """\
import os, signal, sys

if "BENCH" in os.environ and "resource_tracker" not in sys.orig_argv[-1]:
    if os.getpgid(0) == int(os.environ["BENCH"]):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            print("a child heard", file=sys.stderr, flush=True)
    os.killpg(int(os.environ["BENCH"]), signal.SIGINT)
    os._exit(0)
os.environ.setdefault("BENCH", str(os.getpgid(0)))
"""
IN_BENCH_SWITCH = """\
from peelsum.bench.switch import rows as bench_switch
from peelsum.processes.user_errors import exit_on_errors
from peelsum.processes.user_errors import InterruptContext

with exit_on_errors(), InterruptContext():
    bench_switch.{}
"""


def interrupted_demo(tmp_path, how):
    (tmp_path / "sitecustomize.py").write_text(how)
    (folder := tmp_path / "temporary").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(folder)}
    done = subprocess.run(
        DEMO, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment
    )
    return done.returncode, done.stdout, done.stderr, list(folder.iterdir())


def test_ctrl_c_while_importing_shows_no_traceback(tmp_path):
    assert interrupted_demo(tmp_path, WHILE_IMPORTING) == (-signal.SIGINT, "", "", [])


@pytest.mark.parametrize(
    "part",
    ["measure_switch('memory', 32, 1, 0.01)", "_first_packet_seconds(32)"],
    ids=["row", "first packet"],
)
def test_ctrl_c_while_a_measurement_starts_shows_no_traceback(tmp_path, part):
    (tmp_path / "sitecustomize.py").write_text(WHILE_A_CHILD_STARTS)
    done = subprocess.run(
        [sys.executable, "-c", IN_BENCH_SWITCH.format(part)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        start_new_session=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_raises_and_later_ones_leave_the_clean_up_alone(number):
    before = [signal.getsignal(each) for each in SIGNALS]
    with InterruptContext():
        with pytest.raises(Interrupted) as raised:
            signal.raise_signal(number)
        for later in SIGNALS:
            signal.raise_signal(later)
    assert raised.value.status == 128 + number
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_c_has_swallowed_is_raised_again():
    with InterruptContext() as interruption:
        interruption.check()
        ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGTERM))()
        with pytest.raises(Interrupted, match="SIGTERM"):
            interruption.check()
        with ExitStack() as stack:
            processes = Processes(stack, interruption, timeout_s=PATIENCE_S)
            processes._workers.append(Child.peelsum("worker 0", "demo-worker", "--help"))
            stack.callback(processes._workers[0].stop)
            with pytest.raises(Interrupted, match="SIGTERM"):
                processes.gather_reports()


def test_ignored_signals_stay_ignored():
    assert signal.SIGHUP in ending_signals()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ending_signals() == [signal.SIGINT, signal.SIGTERM]
        with InterruptContext() as interruption:
            signal.raise_signal(signal.SIGHUP)
            interruption.check()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

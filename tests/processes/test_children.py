"""Children that end by themselves: their exit reports."""

import gc
import os
import signal
import subprocess
import sys

import pytest
from patience import PATIENCE_S

from peelsum.processes import Child, SignalWaiter
from peelsum.processes.user_errors import InterruptContext, Interrupted


def ended(program):
    """A child that ran a Python program to its end."""
    child = Child("part", [sys.executable, "-c", program])
    assert child.has_message(30)
    return child


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            "import sys; [print(n, file=sys.stderr) for n in range(9)]; sys.exit(3)",
            "status 3; it said: 6 | 7 | 8",
        ),
        ("print('loading'); raise SystemExit(1)", "status 1; it said: loading"),
        ("raise SystemExit(1)", "status 1"),
    ],
)
def test_how_a_child_ended_is_told_with_its_last_lines(program, told):
    child = ended(program)
    assert child.exit_report() == f"part: ended with {told}"
    child.stop()


def test_a_killed_child_is_told_of_by_its_signal():
    child = Child("part", [sys.executable, "-c", "import signal; print('{}', flush=True); signal.pause()"])
    assert child.ready() == {}
    os.kill(child.pid, signal.SIGKILL)
    assert child.has_message(30)
    assert child.exit_report() == "part: ended by SIGKILL"
    child.stop()


def test_a_message_to_a_child_that_has_ended_does_not_harm():
    child = ended("import os; os.kill(os.getpid(), 9)")
    child.send(hello=1)
    assert child.stop() == {}


def test_a_signal_is_remembered_until_it_was_waited_for():
    before = signal.getsignal(signal.SIGUSR2)
    signalled = SignalWaiter(signal.SIGUSR2)
    try:
        assert not signalled.wait(0)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert signalled.wait(PATIENCE_S)
        assert not signalled.wait(0)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_stopped_child_ends_in_its_own_way():
    program = (
        "import os, signal, sys, time\n"
        # A handler cannot print while the line below is printed.
        "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'{\"last\": 1}\\n'), sys.exit(0)))\n"
        # `signal.pause()` would miss a signal that comes just before it.
        "print('{}', flush=True)\nwhile True: time.sleep(0.01)\n"
    )
    child = Child("part", [sys.executable, "-c", program])
    assert child.ready() == {}
    os.kill(child.pid, signal.SIGSTOP)
    assert child.stop() == {"last": 1}


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_a_command_that_there_is_not_leaves_nothing_open():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Child("child", ["/nowhere"], foreign=True)
    gc.collect()


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_a_child_starts_ends_it(monkeypatch):
    started = []

    class Interrupting(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupting)
    with InterruptContext(), pytest.raises(Interrupted, match="SIGTERM"):
        Child("sleeper", ["sleep", "1000"], foreign=True)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_messages_that_were_sent_before_the_child_reads_the_first_all_arrive():
    program = (
        "import time; from peelsum.processes import print_message, receive_from_parent as first\n"
        "from peelsum.processes import terminate_with_parent; time.sleep(0.2)\n"
        "print_message(**first()); terminate_with_parent(lambda other: print_message(**other)); time.sleep(9)"
    )
    child = Child("child", [sys.executable, "-c", program])
    try:
        child.send(number=1)
        child.send(number=2)
        assert child.ready() == {"number": 1}
        assert child.next_message(PATIENCE_S) == {"number": 2}
    finally:
        child.stop()

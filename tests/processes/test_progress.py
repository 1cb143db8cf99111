"""Progress: a child that reports its work is waited for, and long work is shown."""

import re
import sys
import threading
import time

import pytest
from patience import PATIENCE_S, with_longer_timeouts

from peelsum.compiling import progress as compiling
from peelsum.processes import Child, ProcessError
from peelsum.processes.progress import reporting_progress, shown_on_stderr

#: Busy until told to go on; says so all the while.
BUSY = """
import sys, threading, time
from peelsum.processes import print_message, receive_from_parent
from peelsum.processes.progress import reporting_progress
import peelsum.processes.progress as progress
progress.INTERVAL_S = 0.05
with reporting_progress("compiling loops", lambda text: print_message(working=text)):
    receive_from_parent()
print_message(ready=True)
receive_from_parent()
"""
SILENT = 'import time, sys; print(\'{"working": "compiling loops: 7 s"}\', flush=True); sys.stdin.read()'


@pytest.fixture
def child():
    """child(program) is a child that runs it; it has ended at the end."""
    children = []

    def start(program):
        children.append(Child("server", [sys.executable, "-c", program]))
        return children[-1]

    yield start
    for one in children:
        one.stop()


def test_a_child_that_says_what_it_is_busy_with_is_waited_for(child, monkeypatch):
    told = []
    monkeypatch.setattr(Child, "on_progress", staticmethod(told.append))

    def waited_for(timeout_s):
        told.clear()
        busy = child(BUSY)
        while not told:  # it has started, and beats from now on
            assert busy.running
            time.sleep(0.01)
        release = threading.Timer(1.4 * timeout_s, lambda: busy.send(go_on=True))
        release.start()
        try:
            assert busy.ready(timeout_s) == {"ready": True}
        except ProcessError as error:  # as on a machine where it cannot even beat
            raise AssertionError from error
        assert told[0].startswith("server: compiling loops: ")
        busy.send(go_on=True)

    with_longer_timeouts(waited_for)


def test_a_child_that_is_silent_is_not_and_its_last_word_is_told(child):
    silent = child(SILENT)
    while not silent.last_progress():
        time.sleep(0.01)
    with pytest.raises(ProcessError) as caught:
        silent.ready(timeout_s=0.5)
    assert str(caught.value) == (
        "server: no answer within 0.5 s, the last being 'compiling loops: 7 s'; check whether it is stopped, "
        "or what else keeps this machine busy"
    )


def test_messages_that_are_alike_are_shown_once_in_a_while(capsys, monkeypatch):
    shown_at = [
        1.0,
        3.0,
        5.0,
        7.0,
        9.0,
        11.25,
        14.0625,
    ]  # two seconds apart, later a quarter of the time so far
    now = iter([0.0, 0.5, 0.9, *(at + offset for at in shown_at for offset in (0.0, 0.5)), 20.0])
    monkeypatch.setattr(compiling.time, "monotonic", lambda: next(now))
    show = shown_on_stderr()
    for text in (
        "a: first",
        "b: first",
        "a: early",
        *(f"a: {at}{soon}" for at in shown_at for soon in ("", "+")),
    ):
        show(text)
    show("b: second")
    assert capsys.readouterr().err.splitlines() == [*(f"a: {at}" for at in shown_at), "b: second"]


def test_what_takes_two_seconds_is_shown(capsys):
    with reporting_progress("waiting", shown_on_stderr()):
        deadline = time.monotonic() + PATIENCE_S
        while not (shown := capsys.readouterr().err) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert re.fullmatch(r"waiting: [2-9] s\n", shown)

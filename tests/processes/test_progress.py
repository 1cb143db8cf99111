"""Progress: a child that reports its work is waited for, and long work is shown."""

import queue
import re
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from numba import njit
from patience import PATIENCE_S

from peelsum.compiling import progress as compiling
from peelsum.processes import Child, ProcessError, progress
from peelsum.processes.progress import shown_on_stderr, taking_time

#: Busy until told to go on; says so all the while.
BUSY = """
import sys, threading, time
from peelsum.processes import hear, say
from peelsum.processes.progress import taking_time
import peelsum.processes.progress as progress
progress.BEAT_S = 0.05
with taking_time("compiling loops", lambda text: say(working=text)):
    hear()
say(ready=True)
hear()
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
    monkeypatch.setattr(Child, "on_work", staticmethod(told.append))
    busy = child(BUSY)
    while not told:  # it has started, and beats from now on
        assert busy.running
        time.sleep(0.01)
    release = threading.Timer(6.0, lambda: busy.tell(go_on=True))
    release.start()
    assert busy.ready(timeout_s=4.0) == {"ready": True}
    assert told[0].startswith("server: compiling loops: ")
    assert len(set(told)) > 1
    busy.tell(go_on=True)


def test_a_child_that_is_silent_is_not_and_its_last_word_is_told(child):
    silent = child(SILENT)
    while not silent.busy_with():
        time.sleep(0.01)
    with pytest.raises(ProcessError) as caught:
        silent.ready(timeout_s=0.5)
    assert str(caught.value) == (
        "server: no answer within 0.5 s, the last being 'compiling loops: 7 s'; check whether it is stopped, "
        "or what else keeps this machine busy"
    )


def test_messages_that_are_alike_are_shown_once_in_a_while(capsys, monkeypatch):
    now = iter([0.0, 0.5, 0.9, 1.0, 1.5, 10.9, 11.0, 30.9, 31.0])
    monkeypatch.setattr(compiling.time, "monotonic", lambda: next(now))
    show = shown_on_stderr()
    for text in "a: 2", "b: 2", "a: 4", "a: 5", "b: 6", "a: 15", "a: 16", "a: 35", "a: 36":
        show(text)
    assert capsys.readouterr().err.splitlines() == ["a: 5", "b: 6", "a: 16", "a: 36"]


def test_what_takes_two_seconds_is_shown(capsys):
    with taking_time("waiting", shown_on_stderr()):
        deadline = time.monotonic() + PATIENCE_S
        while not (shown := capsys.readouterr().err) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert re.fullmatch(r"waiting: [2-9] s\n", shown)


def test_what_is_quick_is_not_told_of(monkeypatch):
    told = []
    monkeypatch.setattr(progress, "BEAT_S", PATIENCE_S)
    with taking_time("nothing", told.append):
        pass
    assert told == []


def test_what_numba_compiles_is_told_and_how_much_of_it_is_done(monkeypatch):
    told, named = [], threading.Event()

    def tell(text):
        told.append(text)
        named.set()

    monkeypatch.setattr(compiling, "BEAT_S", 0.01)
    monkeypatch.setattr(compiling._work, "tell", tell)

    def loop(n):
        total = 0
        for i in range(n):
            total += i * i
        return total

    loop.__module__ = "peelsum.transport.test"
    for _ in range(100):  # until a beat falls into a compilation
        assert njit(loop)(4) == 14
        if named.is_set():
            break
    assert re.match(r"compiling the packet loops, once for this machine: \d+ s", told[0])


def test_functions_are_counted_from_the_first_one_done(monkeypatch):
    """A switch program is one function, which is under way until all is done."""
    work, told = compiling._Work(), queue.SimpleQueue()
    work.tell = told.put
    monkeypatch.setattr(compiling, "BEAT_S", 0.01)
    for module in ("peelsum.softswitch.runtime.compiled", "peelsum.softswitch.runtime.lookups"):
        function = SimpleNamespace(py_func=SimpleNamespace(__module__=module))
        work.on_start(SimpleNamespace(data={"dispatcher": function}))
    message = r"compiling the switch program, once for this machine: \d+ s"
    assert re.fullmatch(message, told.get(timeout=PATIENCE_S))
    work.on_end(None)
    while re.fullmatch(message, said := told.get(timeout=PATIENCE_S)):
        pass  # said before the inner one was done
    work.on_end(None)
    assert re.fullmatch(message + ", functions done 1", said)

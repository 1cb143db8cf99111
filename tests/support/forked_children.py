"""Parts of a network, forked from one process that has the program loaded, in tests that start many of them.

A child runs `peelsum ...` as a process of its own, with its own streams, session, signals and exit status.
What it saves is the start: imports, and loading what is compiled. `peelsum up` and `peelsum demo`, and all
that they start, are never forked.
"""

import atexit
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.reduction import DupFd
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch
from weakref import finalize

import pytest

from peelsum.processes import children

#: Modules that the one process has loaded from which children, and ranks of torch_ranks.py, are forked.
LOADED = ["torch_ranks_loaded", "children_loaded"]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(LOADED)
_PEELSUM = [sys.executable, "-m", "peelsum.cli"]
_starting = threading.Lock()


def start_apart(process):
    """Start a process with what its server has loaded, and nothing of the program that runs the tests."""
    nothing = patch.multiple(sys.modules["__main__"], __spec__=None, __file__=None, create=True)
    # One at a time: the second of two threads would find what the first has set, and restore that.
    with _starting, nothing, patch.dict(os.environ, PYTHONPATH=str(Path(__file__).parent)):
        process.start()


def inherit_no_ends():
    """Forget what the parent process would have to clean up at its exit, so that this one does not.

    Most of it is torch's, and takes longer than many a part of a network runs.
    """
    atexit._clear()
    for inherited in finalize._registry:
        inherited.atexit = False
    for own in (logging.shutdown, finalize._exitfunc):
        atexit.register(own)


class Forked:
    """What `Child` uses of `subprocess.Popen`."""

    def __init__(self, command, *, stderr, env, **_):
        self.args = command
        child_in, to_child = os.pipe()
        from_child, child_out = os.pipe()
        self.stdin, self.stdout = os.fdopen(to_child, "wb"), os.fdopen(from_child, "rb")
        theirs = (child_in, child_out, stderr.fileno())
        arguments = (command[len(_PEELSUM) :], dict(env), Path.cwd(), [_Passed(one) for one in theirs])
        self._process = _CONTEXT.Process(target=_run, args=arguments)
        start_apart(self._process)
        os.close(child_in)
        os.close(child_out)

    @property
    def pid(self):
        return self._process.pid or 0

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        return status

    def send_signal(self, number):
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since; subprocess.Popen ignores that, too
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class _Passed:
    """A file descriptor that goes to the child."""

    def __init__(self, number):
        self._number = number

    def __reduce__(self):
        return _detached, (DupFd(self._number),)


def _detached(passed):
    return int(passed.detach())


def _run(arguments, environment, folder, streams):
    os.setsid()
    inherit_no_ends()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["peelsum", *arguments]
    from peelsum.cli.main import main

    status = 0
    try:
        main()
    except SystemExit as ended:
        status = ended.code
    sys.stdout.flush()
    sys.stderr.flush()
    atexit._run_exitfuncs()
    os._exit(int(status or 0))


def _popen(command, **options):
    forked = [*command[: len(_PEELSUM)]] == _PEELSUM
    return (Forked if forked else subprocess.Popen)(command, **options)


@pytest.fixture(scope="module")
def forked_children():
    """Fork every `Child.peelsum` that this process starts, those of fixtures of the module, too."""
    calls = SimpleNamespace(Popen=_popen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
    with patch.object(children, "subprocess", calls):
        yield

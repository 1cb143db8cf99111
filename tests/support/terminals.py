"""Shells that run typed commands, with this environment's programs on PATH and no rank of their own."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil

_LEFT_OUT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PEELSUM_SEAT", "PEELSUM_JOB")


class Terminal:
    """A shell, started by `command`. Each wait ends after `patience_s`."""

    def __init__(self, command, folder, patience_s, **environment):
        inherited = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._patience_s = patience_s
        self._shell = subprocess.Popen(
            command,
            cwd=folder,
            env={**inherited, "PATH": path, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.shown = ""

    def wait_for(self, text):
        """Read until a line with `text` in it."""
        patience = threading.Timer(self._patience_s, self._shell.kill)
        patience.start()
        while text not in self.shown:
            line = self._shell.stdout.readline()
            assert line, self.shown
            self.shown += line
        patience.cancel()

    def rest(self):
        """Return all output once the shell has ended with status 0."""
        if not self._shell.stdout.closed:
            self.shown += self._shell.communicate(timeout=self._patience_s)[0]
        assert self._shell.returncode == 0, self.shown
        return self.shown

    def press_ctrl_c(self):
        """Interrupt the shell, and assert that every process it started ends."""
        started = psutil.Process(self._shell.pid).children(recursive=True)
        os.killpg(self._shell.pid, signal.SIGINT)
        self.shown += self._shell.communicate(timeout=self._patience_s)[0]
        assert psutil.wait_procs(started, self._patience_s)[1] == []

    def close(self):
        """Press Ctrl-C unless the shell has ended; kill its process group if that does not end it."""
        if self._shell.poll() is None:
            try:
                self.press_ctrl_c()
            finally:
                if self._shell.poll() is None:
                    os.killpg(self._shell.pid, signal.SIGKILL)
                    self._shell.communicate()

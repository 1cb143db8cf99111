"""Importing compiles nothing and needs no folder, as for a service user or in a read-only container."""

import subprocess
import sys

import pytest
from patience import PATIENCE_S

#: Imports all modules, and then runs each command given, in a forked child. Numba's own cache has no place,
#: as for a user who can write neither beside the modules nor anywhere else.
PROGRAM = """
import gc, importlib, os, pkgutil, sys, tempfile
from numba.core import caching, event

def fail(*_):
    raise RuntimeError("no locator available")

class Compiled(event.Listener):
    on_start = on_end = fail

NOWHERE = tempfile.tempdir = "/proc/self/nothing"
os.environ |= dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"), NOWHERE)
caching.CacheImpl.__init__ = fail
event.register("numba:compile", Compiled())
import peelsum
for module in pkgutil.walk_packages(peelsum.__path__, "peelsum."):
    # Those of trainers have no loops, and import for seconds. `flexible` only says where its content is.
    if not module.name.endswith(("__main__", ".lightning", ".transformers", ".flexible")):
        importlib.import_module(module.name)
print("imported", flush=True)
from peelsum.cli.main import main
gc.freeze()
for command in sys.argv[1:]:
    if not (child := os.fork()):
        os.dup2(1, 2)
        sys.argv = ["peelsum", *command.split()]
        try:
            main()
        except SystemExit as ended:  # the interpreter's own end takes seconds
            sys.stdout.flush()
            os._exit(ended.code or 0)
    print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
COMMANDS = {
    "--version": 0,
    "controller run --config none.toml": 2,
    "job admit none.toml": 2,
    "server run --admission none.json": 2,
    "switch run --ports 999": 2,
    "certificates token t": 0,
    "plan none.toml": 2,
    "down": 2,
}


@pytest.mark.system
def test_without_a_folder_all_modules_are_imported_and_commands_run(tmp_path):
    pytest.importorskip("torch")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *COMMANDS],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert run.stdout.startswith("imported\n"), run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr
    statuses = [int(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("status ")]
    assert dict(zip(COMMANDS, statuses, strict=True)) == COMMANDS, run.stdout

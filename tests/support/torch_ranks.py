"""Ranks of a training job as real processes, joined by gloo: forked from one server that has torch loaded."""

import atexit
import json
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from dataclasses import asdict
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from forked_children import LOADED, inherit_no_ends, start_apart
from patience import PATIENCE_S

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(LOADED)


def run_ranks(
    world, work, *arguments, environments=(), backend="gloo", patience_s=PATIENCE_S, timeout_s=PATIENCE_S / 2
):
    """Run work(rank, *arguments) on all ranks at once; return the results, None for a rank that was killed.

    `work` is a function that the ranks can import. Raises RuntimeError with the traceback of a rank that
    failed, TimeoutError if one does not return within `patience_s`. timeout_s: the process group's.
    """
    with tempfile.TemporaryDirectory(prefix="peelsum-") as folder:
        given = environments or [{}] * world
        store = Path(folder) / "gloo"
        settings = backend, timeout_s
        ranks = [
            _Rank(rank, world, store, work, arguments, dict(given[rank]), *settings) for rank in range(world)
        ]
        try:
            return [rank.result(patience_s) for rank in ranks]
        finally:
            for rank in ranks:
                rank.end()


def run_several(world, works, **options):
    """Run several works, each a function and its arguments, one after the other in one group of ranks.

    Return the results of all ranks by each work's name. options: see `run_ranks`.
    """
    ranks = run_ranks(world, several, list(works.values()), **options)
    return {name: [results[number] for results in ranks] for number, name in enumerate(works)}


def several(rank, works):
    """Return the results of works, each a function and its arguments."""
    return [work(rank, *arguments) for work, *arguments in works]


def run_at_switch(world, work, *arguments, star=None, **options):
    """`run_ranks` with each rank at a seat of a `Star`; return the results, and the star after its end.

    star: the star's options, such as its loss.
    """
    from peelsum.topology import Star  # here, as ranks that import this module do not need it

    with Star(world, **(star or {})) as made:
        seats = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in made.seats]
        return run_ranks(world, work, *arguments, environments=seats, **options), made


class _Rank:
    def __init__(self, *arguments):
        self._mine, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_run, args=(theirs, *arguments))
        start_apart(self._process)
        theirs.close()

    def result(self, patience_s):
        if not wait([self._mine], patience_s):
            raise TimeoutError(f"a rank did not end within {patience_s:g} s")
        try:
            failed, value = self._mine.recv()
        except EOFError:  # killed
            return None
        if failed:
            raise RuntimeError(value)
        return value

    def end(self):
        if self._process.is_alive():
            self._process.join(5.0)
            self._process.kill()
        self._process.join()


def _run(pipe, rank, world, store, work, arguments, environment, backend, timeout_s):
    inherit_no_ends()
    os.environ.update(environment, GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    try:
        options = {"rank": rank, "world_size": world, "timeout": timedelta(seconds=timeout_s)}
        dist.init_process_group(backend, init_method=f"file://{store}", **options)
        pipe.send((False, work(rank, *arguments)))
    except BaseException:
        pipe.send((True, traceback.format_exc()))
    # End as a script does: run exit handlers, but no destructor, which could wait for other ranks.
    atexit._run_exitfuncs()
    os._exit(0)


def alike(ranks):
    """Return what the ranks have, arrays or lists of arrays, which must be the same on all."""
    for one in ranks:
        np.testing.assert_equal(one, ranks[0])
    return ranks[0]


def error_of(work):
    """Name and message of the error that `work` raises, and the seconds until then; empty without one."""
    began = time.monotonic()
    try:
        work()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "", "", 0.0


def die():
    """End this process as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)

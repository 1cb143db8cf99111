"""Ranks of `lost_ranks.train` that are stopped by SIGSTOP, as by a debugger, and continue later."""

import threading
from pathlib import Path

import lost_ranks
import psutil

from peelsum.torch import SwitchAllreduceState
from peelsum.transport.lease import Lease


def train(rank, victim, moment, until, *arguments):
    """Run `lost_ranks.train` with these arguments; the victim is stopped once, at this moment.

    until: the seconds for which it is stopped, or a file that the first of the others makes at its end.
    """
    if rank == victim:
        _stop_once(moment, lambda: lost_ranks.stop(until))
    result = lost_ranks.train(rank, *arguments)
    if isinstance(until, Path):
        until.touch()
    return result


def train_beside(rank, controller, part, moment, stop_s, *arguments):
    """Run `lost_ranks.train` with these arguments; a part is stopped once, at a moment of rank 1.

    part: "controller", whose process id `controller` is; "server", which it has started; or another id.
    """

    def stop():
        if part == "server":
            process = psutil.Process(controller).children(recursive=True)[0].pid
        else:
            process = controller if part == "controller" else int(part)
        lost_ranks.stop(stop_s, process)

    if rank == 1:
        _stop_once(moment, stop)
    return lost_ranks.train(rank, *arguments)


def _stop_once(moment, stop):
    """Call `stop` at a moment of this process."""
    begun = 0

    def submit(*arguments, **options):
        nonlocal begun
        begun += 1
        if begun == 4 * len(lost_ranks.SIZES) and not isinstance(moment, str):
            threading.Timer(moment, stop).start()
        return submitted(*arguments, **options)

    def agree(*arguments, **options):
        generation = agreed(*arguments, **options)
        stop()
        Lease.agree = agreed
        return generation

    def close(state):
        stop()
        closed(state)

    submitted, agreed, closed = SwitchAllreduceState.submit, Lease.agree, SwitchAllreduceState.close
    patches = {"repair": (Lease, agree), "close": (SwitchAllreduceState, close)}
    where, patch = patches.get(moment, (SwitchAllreduceState, submit))
    setattr(where, patch.__name__, patch)

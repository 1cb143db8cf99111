"""Ranks of `lost_ranks.train` that are stopped by SIGSTOP, as by a debugger, and continue later."""

import threading
from pathlib import Path

import lost_ranks
from lost_ranks import stop

from peelsum.torch import SwitchAllreduceState
from peelsum.transport.lease import Lease


def train(rank, victim, moment, until, *arguments):
    """Run `lost_ranks.train` with these arguments; the victim is stopped once, at this moment.

    until: the seconds for which it is stopped, or a file that the first of the others makes at its end.
    """
    if rank == victim:
        _stop_once(moment, until)
    result = lost_ranks.train(rank, *arguments)
    if isinstance(until, Path):
        until.touch()
    return result


def _stop_once(moment, until):
    """Let this process be stopped at a moment."""
    begun = 0

    def submit(*arguments, **options):
        nonlocal begun
        begun += 1
        if begun == 4 * len(lost_ranks.SIZES) and not isinstance(moment, str):
            threading.Timer(moment, stop, (until,)).start()
        return submitted(*arguments, **options)

    def agree(*arguments, **options):
        generation = agreed(*arguments, **options)
        stop(until)
        Lease.agree = agreed
        return generation

    def close(state):
        stop(until)
        closed(state)

    submitted, agreed, closed = SwitchAllreduceState.submit, Lease.agree, SwitchAllreduceState.close
    patches = {"repair": (Lease, agree), "close": (SwitchAllreduceState, close)}
    where, patch = patches.get(moment, (SwitchAllreduceState, submit))
    setattr(where, patch.__name__, patch)

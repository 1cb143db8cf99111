"""The Python calls of one gradient's sum, from the hook to the backend and back: run it to see them all."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import NamedTuple

import torch

from peelsum.allreduce import LocalSummation
from peelsum.torch import SwitchAllreduceState

ELEMENTS, STEPS_BEFORE = 4096, 3


class Call(NamedTuple):
    """A call of one of peelsum's functions."""

    thread: int
    file: str
    function: str


class Way(NamedTuple):
    """How far a reader has to go to follow the calls."""

    calls: int
    hook_calls: int
    """Those in `peelsum.torch`."""
    files: int
    switches: int
    """How often one call is in another file than the call before it in the same thread."""


def way_of(calls: list[Call]) -> Way:
    """Return the counts of some calls."""
    threads = {call.thread: [one.file for one in calls if one.thread == call.thread] for call in calls}
    return Way(
        calls=len(calls),
        hook_calls=sum(call.file.startswith("torch/") for call in calls),
        files=len({call.file for call in calls}),
        switches=sum(first != second for files in threads.values() for first, second in pairwise(files)),
    )


def calls_of_a_step() -> list[Call]:
    """Sum a gradient four times over a backend of one worker; return the calls of the fourth step."""
    calls: list[Call] = []
    recording = threading.Event()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        folder, _, file = frame.f_code.co_filename.rpartition("/peelsum/")
        if event == "call" and recording.is_set() and folder and "site-packages" not in folder:
            calls.append(Call(threading.get_ident(), file, frame.f_code.co_qualname))

    threading.setprofile(profile)  # for the threads that sum
    try:
        state = SwitchAllreduceState(over=LocalSummation.group(1)[0], values="sketch")
        parameter = torch.nn.Parameter(torch.zeros(ELEMENTS))
        _run(state, parameter, STEPS_BEFORE, lambda: None)
        sys.setprofile(profile)
        _run(state, parameter, 1, recording.set)
        recording.clear()
        sys.setprofile(None)
        state.close()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # as documented
    return calls


def _run(
    state: SwitchAllreduceState, parameter: torch.nn.Parameter, steps: int, begin: Callable[[], None]
) -> None:
    for _ in range(steps):
        gradient = torch.zeros(ELEMENTS)
        gradient[::40] = 1.5
        begin()
        state.submit(gradient, [parameter]).wait()
        state.end_step()


if __name__ == "__main__":
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    calls = calls_of_a_step()
    print(*(f"{call.file} {call.function}" for call in calls), way_of(calls), sep="\n")

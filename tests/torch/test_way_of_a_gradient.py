"""A gradient's sum takes no more Python calls than it did: counts, which hardly depend on the machine."""

from __future__ import annotations

import sys
import threading
from itertools import pairwise
from types import FrameType
from typing import NamedTuple

import torch
from torch_alone import group_of_one

from peelsum.allreduce import LocalSummation
from peelsum.torch import SwitchAllreduceState

ELEMENTS, STEPS_BEFORE = 4096, 3


class Way(NamedTuple):
    """How far a reader has to go to follow the calls of peelsum's functions."""

    calls: int
    hook_calls: int
    """Those in `peelsum.torch`."""
    files: int
    switches: int
    """How often one call is in another file than the call before it in the same thread."""


#: A few calls more than usual, as some depend on which thread is first.
MOST = Way(calls=195, hook_calls=45, files=18, switches=90)


def way_of(files_by_thread: dict[int, list[str]]) -> Way:
    """Return the counts of calls, each given by its file."""
    calls = [file for files in files_by_thread.values() for file in files]
    pairs = (pair for files in files_by_thread.values() for pair in pairwise(files))
    return Way(
        calls=len(calls),
        hook_calls=sum(file.startswith("torch/") for file in calls),
        files=len(set(calls)),
        switches=sum(first != second for first, second in pairs),
    )


def test_no_more_calls_files_and_switches_than_before(request):
    """In the fourth step over a backend of one worker, from the hook to the backend and back."""
    files_by_thread: dict[int, list[str]] = {}
    recording = threading.Event()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        folder, _, file = frame.f_code.co_filename.rpartition("/peelsum/")
        if event == "call" and recording.is_set() and folder and "site-packages" not in folder:
            files_by_thread.setdefault(threading.get_ident(), []).append(file)

    threading.setprofile(profile)  # for the threads that sum, which start later
    request.addfinalizer(lambda: threading.setprofile(None))
    with group_of_one():
        state = SwitchAllreduceState(over=LocalSummation.group(1)[0], values="sketch")
        parameter = torch.nn.Parameter(torch.zeros(ELEMENTS))
        for step in range(STEPS_BEFORE + 1):
            gradient = torch.zeros(ELEMENTS)
            gradient[::40] = 1.5
            if step == STEPS_BEFORE:
                recording.set()
                sys.setprofile(profile)
            try:
                state.submit(gradient, [parameter]).wait()
                state.end_step()
            finally:
                sys.setprofile(None)
        recording.clear()
        state.close()
    way = way_of(files_by_thread)
    assert all(count <= most for count, most in zip(way, MOST, strict=True)), way

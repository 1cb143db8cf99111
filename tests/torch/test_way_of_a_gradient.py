"""A gradient's sum takes no more Python calls than it did: counts, which hardly depend on the machine."""

from contextlib import nullcontext

import torch
from recorded_calls import CallRecorder, Way
from torch_alone import group_of_one

from peelsum.allreduce import LocalSummation
from peelsum.torch import SwitchAllreduceState

ELEMENTS, STEPS_BEFORE = 4096, 3

#: A few calls more than usual, as some depend on which thread is first.
MOST = Way(calls=195, files=18, switches=90)
#: Of the calls, those in `peelsum.torch`.
MOST_HOOK_CALLS = 45


def test_no_more_calls_files_and_switches_than_before():
    """In the fourth step over a backend of one worker, from the hook to the backend and back."""
    with CallRecorder() as recorder, group_of_one():  # the threads that sum start later
        state = SwitchAllreduceState(over=LocalSummation.group(1)[0], values="sketch")
        parameter = torch.nn.Parameter(torch.zeros(ELEMENTS))
        for step in range(STEPS_BEFORE + 1):
            gradient = torch.zeros(ELEMENTS)
            gradient[::40] = 1.5
            with recorder.recording() if step == STEPS_BEFORE else nullcontext():
                state.submit(gradient, [parameter]).wait()
                state.end_step()
        state.close()
    assert recorder.way().is_within(MOST), recorder.way()
    hook_calls = [file for file in recorder.files() if file.startswith("torch/")]
    assert len(hook_calls) <= MOST_HOOK_CALLS

"""What `bench accuracy` trains in one process has the bits and bytes of real processes with the hook."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch_accuracy import flat, trained
from torch_ranks import run_ranks

from benchmarks.accuracy.training import Training, TrainingSetting
from peelsum.topology import Star

RANKS, STEPS = 2, 5
#: One for each kind of sum, and the ablations.
METHODS = (
    *(
        "dense",
        "exact",
        "top-k:0.02",
        "random-k:0.02",
        "star:0.02",
        "var:0.02",
        "qsgd:4",
        "packed:8",
        "ef-sign",
    ),
    *("power:2", "terngrad", "top-k:0.02/no-feedback", "top-k:0.02/momentum", "top-k+qsgd:0.02"),
)
SETTINGS = [
    *(TrainingSetting("digits", method, RANKS, steps=STEPS) for method in METHODS),
    TrainingSetting("ratings", "exact", RANKS, steps=STEPS),
    TrainingSetting("text", "top-k:0.02", RANKS, "0.5", seed=3, steps=STEPS),
    TrainingSetting("transformer", "star:0.02", RANKS, "label", steps=STEPS),
    TrainingSetting("images", "qsgd:4", RANKS, steps=2),  # has dropout
]


@pytest.fixture(scope="module")
def in_process():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    outcome = []
    for setting in SETTINGS:
        with Training(setting) as training:
            while training.done < training.steps:
                assert training.step()
            outcome.append((flat(training.subject.model), training.wire_bytes))
    torch.set_num_threads(before)
    return outcome


@pytest.fixture(scope="module")
def over_gloo():
    return run_ranks(RANKS, trained, SETTINGS, "gloo", patience_s=240.0)


@pytest.fixture(scope="module")
def over_switch():
    with Star(RANKS) as star:
        seats = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        return run_ranks(RANKS, trained, SETTINGS, "switch", environments=seats, patience_s=240.0)


@pytest.mark.system
@pytest.mark.parametrize("backend", ["over_gloo", "over_switch"])
def test_parameters_are_those_of_processes_bit_for_bit(in_process, backend, request):
    for rank in request.getfixturevalue(backend):
        pairs = zip(SETTINGS, in_process, rank, strict=True)

        def same(mine, theirs):
            return np.array_equal(mine.view(np.int32), theirs.view(np.int32))

        differ = [setting for setting, (mine, _), (theirs, _) in pairs if not same(mine, theirs)]
        assert differ == []


@pytest.mark.system
def test_bytes_are_those_of_the_hook_s_statistics(in_process, over_gloo):
    pairs = zip(SETTINGS, in_process, over_gloo[0], strict=True)
    differ = [(setting, mine, theirs) for setting, (_, mine), (_, theirs) in pairs if mine != theirs]
    assert differ == []

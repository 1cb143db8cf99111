"""The state: restored, closed, and given invalid values."""

import re

import numpy as np
import pytest
import torch
import torch_training as training
from torch_alone import Sums, group_of_one, hooked, in_time
from torch_ranks import run_ranks, run_several

from peelsum.allreduce import InvalidRequestError
from peelsum.compress import Flexible, PowerSGD, SignSGD
from peelsum.torch import HookConfigError, SwitchAllreduceState, TopK
from peelsum.wire import packet_bytes


@pytest.fixture(scope="module")
def over_gloo():
    """Return what each of several works returned on the two ranks of one group."""
    return run_several(
        2,
        {
            "restored": (training.restored,),
            "in two groups": (training.in_two_groups,),
            "in double": (training.in_double, {"strategy": Flexible(explore_steps=1)}),
        },
    )


def test_training_goes_on_from_a_checkpoint_bit_for_bit(over_gloo):
    for outcome in over_gloo["restored"]:
        np.testing.assert_array_equal(outcome["restored"], outcome["expected"])
        assert outcome["steps"] == 6


def test_statistics_before_the_first_sum():
    stats = SwitchAllreduceState().stats()
    assert (stats.steps, stats.saving, stats.tensors) == (0, 1.0, {})


def test_load_state_dict_of_another_kind():
    with pytest.raises(HookConfigError, match="make the state with a compressor or strategy"):
        SwitchAllreduceState(compressor=TopK(0.5)).load_state_dict(SwitchAllreduceState().state_dict())


def test_a_script_that_fails_in_a_sum_ends_at_once():
    seconds, _ = run_ranks(2, training.leaves_early, 20.0)
    assert seconds < 10


def test_a_script_leaves_its_job_at_exit():
    assert run_ranks(2, training.leaves) == [(0, True)] * 2


def test_a_group_that_only_ddp_was_given_is_an_error(over_gloo):
    """Else one hook would sum over the ranks of two models."""
    for error in over_gloo["in two groups"]:
        assert error.startswith(
            "HookConfigError process_group: DDP has another group than the state; give both"
        )


@pytest.mark.parametrize("compressor", [None, TopK(0.1)], ids=str)
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)], ids=str)
def test_savings_are_counted_in_the_gradients_own_bytes(dtype, size, compressor, caplog):
    with group_of_one():
        state = SwitchAllreduceState(over=Sums(), compressor=compressor)
        ddp = hooked(state, torch.nn.Linear(64, 64, bias=False, dtype=dtype))
        for _ in range(12):
            ddp(torch.ones(2, 64, dtype=dtype)).sum().backward()
        stats = state.stats()
    assert stats.dense_bytes == 12 * -(-64 * 64 * size // (4 * Sums.lanes)) * packet_bytes(Sums.lanes)
    doubled = compressor is None and size == 2
    said = [record.message.partition(" times")[0] for record in caplog.records]
    assert said == ["step 10: sent 2.1"] * doubled


FLOAT64 = (
    "dtype: '(weight|bias)' is float64; convert it to one of float32, float16, bfloat16 on every worker, "
    "or leave the hook out: DDP itself sums float64"
)


@pytest.mark.parametrize(
    "options", [{}, {"compressor": TopK(0.1)}, {"compressor": SignSGD()}, {"compressor": PowerSGD()}], ids=str
)
def test_float64_is_refused_however_it_would_be_summed(options):
    """It was rounded to float32, with 1e300 as infinity."""
    module = torch.nn.Linear(4, 3, dtype=torch.float64)
    with group_of_one():
        state = SwitchAllreduceState(over=Sums(), names=module.named_parameters(), **options)
        ddp = hooked(state, module)
        with pytest.raises(InvalidRequestError, match=FLOAT64):
            in_time(lambda: ddp(torch.full([2, 4], 1e300, dtype=torch.float64)).sum().backward())


def test_float64_is_refused_with_a_strategy_on_every_rank(over_gloo):
    for error in over_gloo["in double"]:
        assert re.fullmatch(f"InvalidRequestError {FLOAT64}", error), error

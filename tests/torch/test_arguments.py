"""Invalid arguments are refused by the constructor, with field, value and remedy."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch_alone import Sums, group_of_one, hooked, in_time

from peelsum.compress import QSGD, CompressConfigError
from peelsum.flexible import Flexible
from peelsum.torch import HookConfigError, RandomK, SwitchAllreduceState, Threshold, TopK

LAYER = torch.nn.Linear(2, 2)
NAMES = [("weight", LAYER.weight), ("bias", LAYER.bias)]
#: A parameter's residual in a checkpoint of version 1.
NOTHING_KEPT = {"numbers": torch.zeros(1, dtype=torch.int64), "velocity": None, "scale": None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forms": "foo"}, "forms: 'foo' for every tensor is unknown; use one of dense,"),
        ({"forms": {"weight": "foo"}, "names": NAMES}, "forms: 'foo' for weight is unknown; use one of"),
        ({"forms": {"wieght": "dense"}, "names": NAMES}, "forms: 'wieght' is not among `names`; correct it,"),
        ({"index": "foo"}, "index: 'foo' is unknown; use one of bitmap,"),
        ({"limbs": 2}, "limbs: was removed; leave it out: every block of elements has a scale of its own"),
        ({"graphs": True}, "graphs: was removed; leave it out: launches are not captured"),
        ({"predict": "x"}, "predict: 'x' is not a bool; use True or False"),
        ({"implementation": "tpu"}, "implementation: 'tpu' is unknown; use 'cpu' or 'gpu'"),
        ({"joined": 1}, "joined: 1 is not a choice; give True or False"),
        (
            {"joined": True},
            "joined: True is for chosen elements; use it with an indexed compressor such as TopK",
        ),
        (
            {"joined": True, "strategy": Flexible()},
            "joined: True is for chosen elements; use it with an indexed compressor such as TopK",
        ),
        (
            {"joined": True, "compressor": TopK(0.1), "forms": {"weight": "dense"}},
            "joined: True takes one form for all; use joined=False with forms by name",
        ),
        ({"seed": "x"}, "seed: 'x' is not a seed; give an integer"),
        ({"network": 5}, "network: 5 is not a network model; give a peelsum.allreduce.NetworkModel"),
        (
            {"compressor": 0.1},
            "compressor: 0.1 is not a compressor; give one of peelsum.compress such as TopK",
        ),
        ({"compressor": TopK}, "is not a compressor; give one of peelsum.compress"),
        ({"sparsifier": TopK(0.1)}, "sparsifier: was removed; give it as compressor"),
        ({"compressor": "qsgd"}, "compressor: 'qsgd' is not a compressor; give one of peelsum.compress"),
        ({"compressor": QSGD}, "is not a compressor; give one of peelsum.compress"),
        ({"compressor": QSGD(4), "implementation": "gpu"}, "implementation: 'gpu' has no error feedback;"),
        ({"compressor": QSGD(4), "momentum": 0.5}, "momentum: 0.5 needs error feedback; give feedback=True"),
        ({"compressor": QSGD(4), "error_feedback": 1}, "error_feedback: 1 is not a choice; give True, False"),
        (
            {"strategy": "knee"},
            "strategy: 'knee' is not a strategy; give a peelsum.flexible.Flexible,",
        ),
        ({"strategy": Flexible}, "is not a strategy; give a peelsum.flexible.Flexible, or None"),
        ({"strategy": Flexible(), "compressor": QSGD(4)}, "compressor: QSGD(bits=4, norm='two', block=512, "),
        (
            {"strategy": Flexible(), "compressor": TopK(0.5)},
            "does not go with a strategy, which chooses what to send; use one of both",
        ),
        ({"strategy": Flexible(), "momentum": 0.5}, "momentum: 0.5 does not go with a strategy, whose dense"),
        ({"strategy": Flexible(), "error_feedback": False}, "error_feedback: False does not go with a strat"),
        ({"strategy": Flexible(), "implementation": "gpu"}, "implementation: 'gpu' does not go with a strat"),
        (
            {"strategy": Flexible(methods=("dense_ring", "top_k_switch")), "over": "gloo"},
            "strategy: method 'top_k_switch' needs a switch, but over is 'gloo'; use over='switch', or leave",
        ),
        ({"error_feedback": True}, "error_feedback: True is for compressors; use None without one"),
        ({"compressor": TopK(0.5), "momentum": "a"}, "momentum: 'a' is not a number; give one from 0"),
        ({"over": None}, "over: None is not a backend; use 'switch',"),
        ({"process_group": "x"}, "process_group: 'x' is not a group that this rank is in; give one"),
        ({"log_every": -1}, "log_every: -1 is not a number of steps; give an integer, 0 for never"),
        ({"log_every": 1.5}, "log_every: 1.5 is not a number of steps; give"),
        ({"timeout_s": 0}, "timeout_s: 0 is not a timeout; give seconds above 0"),
        ({"timeout_s": "a"}, "timeout_s: 'a' is not a timeout; give seconds above 0"),
        ({"names": LAYER.parameters()}, "names: has a Parameter where a name and its parameter should be;"),
        ({"names": dict(NAMES)}, "names: has a str where a name and its parameter should be; give"),
    ],
)
def test_of_the_state(arguments, message):
    with pytest.raises(HookConfigError, match=re.escape(message)):
        SwitchAllreduceState(**arguments)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (TopK, {"ratio": "a"}, "ratio: 'a' is not a share; give a number above 0, up to 1"),
        (TopK, {"ratio": 0.1, "sample": "a"}, "sample: 'a' is not a share; give"),
        (TopK, {"ratio": 0.1, "per": "layer"}, "per: 'layer' is unknown; use 'tensor' or 'bucket'"),
        (RandomK, {"ratio": 0.1, "per": "layer"}, "per: 'layer' is unknown; use"),
        (Threshold, {"value": 1.0, "per": "layer"}, "per: 'layer' is unknown; use"),
        (Threshold, {"value": "a"}, "value: 'a' is not a threshold; give a number above 0"),
        (TopK, {"ratio": 0.1, "warm_up_steps": 1.5}, "warm_up_steps: 1.5 is not a number of steps; give"),
        (
            RandomK,
            {"ratio": 0.5, "warm_up_steps": 5},
            "warm_up_from: 0.25 is below the ratio, 0.5; give at least the ratio",
        ),
    ],
    ids=str,
)
def test_of_a_sparsifier(make, arguments, message):
    with pytest.raises(CompressConfigError, match=re.escape(message)):
        make(**arguments)


def test_complex_parameters_with_and_without_names():
    module = torch.nn.Linear(4, 3, dtype=torch.complex64)
    message = "is torch.complex64; use its real and imaginary parts as parameters"
    with pytest.raises(HookConfigError, match=f"names: 'weight' {message}"):
        SwitchAllreduceState(names=module.named_parameters())
    with group_of_one():
        ddp = hooked(SwitchAllreduceState(over=Sums()), module)
        with pytest.raises(HookConfigError, match=f"names: 'parameter 0' {message}"):
            in_time(lambda: ddp(torch.ones(2, 4, dtype=torch.complex64)).abs().sum().backward())


@pytest.mark.parametrize(
    "values",
    [
        None,
        {"version": 1},
        {"version": 1, "steps": "a"},
        {"version": 1, "steps": 1, "residuals": [1]},
        {"version": 1, "steps": float("inf")},
        {"version": 1, "steps": 1, "residuals": {"weight": {"numbers": torch.zeros(1)}}},
        {"version": 1, "steps": 1, "residuals": {"weight": {"numbers": torch.zeros(1).requires_grad_()}}},
        *(
            {"version": 1, "steps": 1, "residuals": {"weight": NOTHING_KEPT | {"scale": scale}}}
            for scale in (2**15, 0.5, float("nan"))
        ),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_structure_changes_nothing(values):
    kept = values is None or "residuals" not in values
    state = SwitchAllreduceState(over="gloo", compressor=None if kept else TopK(0.5))
    before = state.state_dict()
    with pytest.raises(HookConfigError, match="give what state_dict returned"):
        state.load_state_dict(values)
    assert state.state_dict() == before


@pytest.mark.parametrize("strategy", [1, {"known": {}}], ids=str)
def test_a_checkpoint_of_another_strategy_is_refused(strategy):
    values = {"version": 1, "steps": 1, "residuals": {}, "strategy": strategy}
    with pytest.raises(HookConfigError, match="strategy: is not that of a saved state; give what state_dict"):
        SwitchAllreduceState(over="gloo", strategy=Flexible()).load_state_dict(values)


def test_a_checkpoint_without_momentum_for_a_state_with_it():
    state = SwitchAllreduceState(over="gloo", compressor=TopK(0.5), momentum=0.5)
    with pytest.raises(HookConfigError, match="momentum: the checkpoint was made without, this state with;"):
        state.load_state_dict({"version": 1, "steps": 1, "residuals": {"weight": NOTHING_KEPT}})

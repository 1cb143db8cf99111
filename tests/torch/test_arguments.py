"""Invalid arguments are refused by the constructor, with field, value and remedy."""

import re
import subprocess
import sys

import pytest
import torch
from patience import PATIENCE_S
from torch_alone import Sums, group_of_one, hooked, in_time

from peelsum.compress import QSGD, Flexible
from peelsum.torch import HookConfigError, SwitchAllreduceState, TopK

LAYER = torch.nn.Linear(2, 2)
NAMES = [("weight", LAYER.weight), ("bias", LAYER.bias)]
#: A parameter's residual in a checkpoint.
NOTHING_KEPT = {
    "numbers": torch.zeros(1, dtype=torch.int64),
    "scales": torch.zeros(1, dtype=torch.int16),
    "velocity": None,
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forms": "foo"}, "forms: 'foo' for every tensor is unknown; use one of dense,"),
        ({"forms": {"weight": "foo"}, "names": NAMES}, "forms: 'foo' for weight is unknown; use one of"),
        ({"forms": {"wieght": "dense"}, "names": NAMES}, "forms: 'wieght' is not among `names`; correct it,"),
        ({"values": "foo"}, "values: 'foo' is unknown; use one of compact, sketch, auto"),
        ({"implementation": "tpu"}, "implementation: 'tpu' is unknown; use 'cpu', 'gpu', or None"),
        ({"network": 5}, "network: 5 is not a network model; give a peelsum.allreduce.NetworkModel"),
        (
            {"compressor": 0.1},
            "compressor: 0.1 is not a compressor; give one of peelsum.compress such as TopK",
        ),
        ({"compressor": TopK}, "is not a compressor; give one of peelsum.compress such as TopK"),
        (
            {"compressor": "qsgd"},
            "compressor: 'qsgd' is not a compressor; give one of peelsum.compress such as TopK",
        ),
        ({"compressor": QSGD}, "is not a compressor; give one of peelsum.compress such as TopK"),
        (
            {"compressor": TopK(0.5, momentum=0.5), "error_feedback": False},
            "momentum: 0.5 needs error feedback; leave out error_feedback=False",
        ),
        ({"compressor": QSGD(4), "error_feedback": 1}, "error_feedback: 1 is not a choice; give True, False"),
        ({"strategy": "knee"}, "strategy: 'knee' is not a strategy; give a peelsum.compress.Flexible,"),
        ({"strategy": Flexible}, "is not a strategy; give a peelsum.compress.Flexible, or None"),
        ({"strategy": Flexible(), "compressor": QSGD(4)}, "compressor: QSGD(bits=4, norm='two', block=512, "),
        (
            {"strategy": Flexible(), "compressor": TopK(0.5)},
            "does not go with a strategy, which chooses what to send; use one of both",
        ),
        ({"strategy": Flexible(), "error_feedback": False}, "error_feedback: False does not go with a strat"),
        (
            {"strategy": Flexible(methods=("dense_ring", "top_k_switch")), "over": "gloo"},
            "strategy: method 'top_k_switch' needs a switch, but over is 'gloo'; use over='switch', or leave",
        ),
        ({"over": None}, "over: None is not a backend; use 'switch',"),
        ({"process_group": "x"}, "process_group: 'x' is not a group that this rank is in; give one"),
        ({"log_every": -1}, "log_every: -1 is not a number of steps; give an integer, 0 for never"),
        ({"log_every": 1.5}, "log_every: 1.5 is not a number of steps; give"),
        ({"timeout_s": 0}, "timeout_s: 0 is not a timeout; give seconds above 0"),
        ({"timeout_s": "a"}, "timeout_s: 'a' is not a timeout; give seconds above 0"),
        ({"names": LAYER.parameters()}, "names: has a Parameter where a name and its parameter should be;"),
        ({"names": dict(NAMES)}, "names: has a str where a name and its parameter should be; give"),
        ({"names": LAYER}, "names: Linear is not a list of names; give model.named_parameters()"),
        ({"shared": [LAYER]}, "shared: list has no names; give {'model': model, 'optimizer': optimizer}"),
    ],
)
def test_of_the_state(arguments, message):
    with pytest.raises(HookConfigError, match=re.escape(message)):
        SwitchAllreduceState(**arguments)


@pytest.mark.parametrize(
    ("arguments", "method", "implementation"),
    [
        ({}, None, None),
        ({"implementation": "gpu", "error_feedback": False}, None, "gpu"),
        ({"implementation": "gpu", "error_feedback": True}, TopK(1.0), "cpu"),
        ({"implementation": "gpu", "compressor": QSGD(4), "error_feedback": False}, QSGD(4), "cpu"),
        ({"implementation": "gpu", "strategy": Flexible(), "error_feedback": True}, None, "cpu"),
    ],
)
def test_combinations_that_were_refused(arguments, method, implementation):
    """Compressors run on the host; error feedback alone keeps what is rounded off."""
    state = SwitchAllreduceState(over="gloo", **arguments)
    compressor = getattr(state._reducer, "compressor", None)
    assert (compressor, state._settings.implementation) == (method, implementation)
    assert state._reducer.keeps_residuals == (method is not None or "strategy" in arguments)


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
    ("values", "remedy"),
    [
        (None, "the result of state_dict"),
        ({"version": 2, "steps": 1}, "a checkpoint of version 3"),
        *(
            ({"version": 3, "rank": 0, "ranks": 1} | one, "the result of state_dict")
            for one in (
                {},
                {"steps": "a"},
                {"steps": float("inf")},
                {"steps": 1, "residuals": [1]},
                {"steps": 1, "residuals": {"weight": {"numbers": torch.zeros(1)}}},
                {"steps": 1, "residuals": {"weight": {"numbers": torch.zeros(1).requires_grad_()}}},
            )
        ),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_structure_changes_nothing(values, remedy):
    kept = values is None or "residuals" not in values
    state = SwitchAllreduceState(over="gloo", compressor=None if kept else TopK(0.5))
    before = state.state_dict()
    with pytest.raises(HookConfigError, match=f"give {remedy}"):
        state.load_state_dict(values)
    assert state.state_dict() == before


@pytest.mark.parametrize("strategy", [1, {"known": {}}], ids=str)
def test_a_checkpoint_of_another_strategy_is_refused(strategy):
    values = {"version": 3, "rank": 0, "ranks": 1, "steps": 1, "residuals": {}, "strategy": strategy}
    with pytest.raises(HookConfigError, match="strategy: is not that of a saved state; give the result"):
        SwitchAllreduceState(over="gloo", strategy=Flexible()).load_state_dict(values)


def test_a_checkpoint_without_momentum_for_a_state_with_it():
    """Velocities begin at zero."""
    state = SwitchAllreduceState(over="gloo", compressor=TopK(0.5, momentum=0.5))
    residuals = {"weight": NOTHING_KEPT}
    state.load_state_dict({"version": 3, "rank": 0, "ranks": 1, "steps": 1, "residuals": residuals})
    assert state.state_dict()["residuals"]["weight"]["velocity"] is None


@pytest.mark.parametrize(("end", "warns"), [("", True), ("raise SystemExit(1)", True), ("1 / 0", False)])
def test_an_unused_state_warns_unless_an_exception_ended_the_script(end, warns):
    script = (
        f"from peelsum.torch import SwitchAllreduceState\nstate = SwitchAllreduceState(over='gloo')\n{end}"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ("state: no gradient ever came to it" in done.stderr) is warns
    assert ("ZeroDivisionError" in done.stderr) is not warns

"""Trainers train to the bits of the plain hook, and their logs say what was saved."""

import gc
import json
import logging
import re
from dataclasses import asdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch_shards as shards
import torch_training as training
import trainer_ranks
from served_job import served_to_four
from torch_ranks import run_ranks

from peelsum.topology import Star
from peelsum.torch import HookConfigError, SwitchAllreduceState, hook

PAGE = Path(__file__).parents[2] / "docs/how-to/use-with-your-trainer.md"
#: The package that an example needs, by the example.
NEEDS = {
    "with_ddp": "torch",
    "with_fsdp2": "torch",
    "with_hsdp": "torch",
    "with_accelerate": "accelerate",
    "with_lightning": "lightning",
    "with_transformers": "transformers",
    "with_deepspeed": "deepspeed",
    "with_zero": "deepspeed",
    "with_torchtitan": "torchtitan",
    "with_torchft": "torchft",
}
#: The examples that other tests run.
RUN_ELSEWHERE = ("with_ddp", "with_zero", "with_torchft")
#: These take each rank many seconds to import.
LARGE = ("lightning", "transformers", "deepspeed", "torchtitan")


def _marked(*examples):
    """Return the examples as parameters, those of large packages marked as `system`."""
    return [pytest.param(one, marks=[pytest.mark.system] if NEEDS[one] in LARGE else []) for one in examples]


def skip_without(package):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.fixture(scope="module")
def by_hook():
    """Return the parameters after the example of DDP, over gloo."""
    return cache(lambda: run_ranks(2, trainer_ranks.trained, "with_ddp", environments=_places())[0][0])


def _places(*more):
    return trainer_ranks.environments(2, *more)


@pytest.mark.parametrize("example", _marked(*(one for one in NEEDS if one not in RUN_ELSEWHERE)))
def test_a_trainer_has_the_bits_of_the_plain_hook(example, by_hook):
    skip_without(NEEDS[example])
    for parameters, saving, shown in run_ranks(2, trainer_ranks.trained, example, environments=_places()):
        np.testing.assert_array_equal(parameters, by_hook())
        assert saving > 10
        assert shown["switch/saving"] > 10


@pytest.mark.usefixtures("forked_children")
@pytest.mark.parametrize("example", _marked("with_fsdp2", "with_lightning"))
def test_over_a_switch(example, by_hook):
    skip_without(NEEDS[example])
    with Star(2) as star:
        alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2"}  # a host for each rank
        seats = [alone | {"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        ranks = run_ranks(2, trainer_ranks.trained, example, environments=_places(*seats))
        for parameters, saving, _ in ranks:
            np.testing.assert_array_equal(parameters, by_hook())
            assert saving > 10
    assert star.report is not None
    assert star.report.server["chunks_in_switch"] > 0


@pytest.mark.system
@pytest.mark.usefixtures("forked_children")
@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_zero_sums_over_a_switch(stage, tmp_path):
    """With losses, every second sum passes `check_recorded`; parameters are alike, and near those by gloo."""
    skip_without("deepspeed")
    places = [place | {"ZERO_STAGE": stage} for place in trainer_ranks.environments(4)]
    (by_gloo, _), *_ = run_ranks(4, trainer_ranks.by_zero, environments=places)
    with served_to_four(tmp_path, "--loss", "0.02", "--seed", "5") as (_, _, job):
        alone = job | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "4"}
        options = {"environments": [place | alone for place in places], "backend": "peelsum"}
        ours = run_ranks(4, trainer_ranks.by_zero, **options)
    for parameters, _ in ours:
        np.testing.assert_array_equal(parameters, ours[0][0])
        np.testing.assert_allclose(parameters, by_gloo, rtol=0, atol=1e-6)
    checked = shards.check_recorded([recorded for _, recorded in ours])
    assert set(checked) == {255 if stage == "3" else 254}  # the first job, or a further group's
    assert min(checked.values()) >= 10


@pytest.mark.system
def test_shards_of_two_with_replicas_of_two():
    """Of four ranks, torch adds two gradients in floats first; so only replicas have the same bits."""
    places = trainer_ranks.environments(4)
    ours = run_ranks(4, trainer_ranks.trained, "with_hsdp", environments=places)
    plain = run_ranks(4, trainer_ranks.trained, "with_ddp", environments=places)
    for parameters, saving, _ in ours:
        np.testing.assert_array_equal(parameters, ours[0][0])
        np.testing.assert_allclose(parameters, plain[0][0], rtol=0, atol=1e-6)
        assert saving > 10


def test_without_ddp():
    for parameters, steps in run_ranks(2, trainer_ranks.without_ddp, 6):
        np.testing.assert_array_equal(parameters, run_ranks(2, training.by_hook, 6, {"over": "gloo"}, {})[0])
        assert steps == 6


@pytest.mark.system
def test_lightnings_own_strategy_leaves_the_hook_out_and_the_state_says_so():
    skip_without("lightning")
    for saving, said in run_ranks(2, trainer_ranks.left_out, environments=_places()):
        assert saving == 1
        assert len(said) == 1
        assert "whose DDPStrategy registers hooks on CUDA only" in said[0]


@pytest.mark.parametrize("end", ["close", "__del__"])
def test_a_state_that_was_never_called_says_so_once(end, caplog):
    gc.collect()  # states of other tests
    caplog.clear()
    state = SwitchAllreduceState(over="gloo")
    if end == "close":
        state.close()
        state.close()
    del state
    assert [(one.levelno, one.name) for one in caplog.records] == [(logging.WARNING, "peelsum.torch.state")]


def _callback(model):
    from peelsum.torch.transformers import SwitchCallback

    files = dict.fromkeys(("_save_optimizer_and_scheduler", "_load_optimizer_and_scheduler"))
    return SwitchCallback(SimpleNamespace(model_wrapped=model, **files), SwitchAllreduceState(over="gloo"))


@pytest.mark.system
def test_the_callback_names_what_is_missing():
    skip_without("transformers")
    with pytest.raises(HookConfigError, match=r"model is Linear, .*\(use_cpu=True\)"):
        _callback(torch.nn.Linear(1, 1)).on_train_begin(None, None, None)


@pytest.mark.system
def test_the_callback_registers_the_hook_on_a_compiled_model(alone):
    skip_without("transformers")
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    _callback(torch.compile(ddp)).on_train_begin(None, None, None)
    assert [used for used, _ in ddp._comm_hooks] == [hook]


@pytest.mark.parametrize(
    ("trainer", "left"),
    [
        ("accelerate", ["peelsum-rank-0-of-2.pt", "peelsum-rank-1-of-2.pt"]),
        pytest.param("transformers", ["epoch 1.0", "epoch 2.0"], marks=pytest.mark.system),
        pytest.param(
            "lightning", ["epoch=1.ckpt", "epoch=1.ckpt.peelsum", "last.ckpt"], marks=pytest.mark.system
        ),
    ],
)
def test_training_from_a_checkpoint_has_the_bits_of_uninterrupted_training(trainer, left, tmp_path):
    """Each rank has residuals of its own, of which the trainers know nothing."""
    skip_without(trainer)
    resume = getattr(trainer_ranks, f"resumed_by_{trainer}")
    for expected, resumed, names in run_ranks(2, resume, str(tmp_path), environments=_places()):
        np.testing.assert_array_equal(resumed, expected)
        assert names == left


@pytest.mark.parametrize("example", NEEDS)
def test_the_page_shows_what_the_example_does(example):
    """A diff's lines stand in the example in this order, up to indentation, and at most five are new."""
    (block,) = re.findall(rf"/{example}\.py\).*?```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text = (trainer_ranks.EXAMPLES / f"{example}.py").read_text()
    lines = iter([line.strip() for line in text.split("\n")])
    shown = [line for line in block.splitlines() if not line.startswith("-")]
    for line in shown:
        assert line[1:].strip() in lines, line
    assert 1 <= sum(line.startswith("+") for line in shown) <= 5

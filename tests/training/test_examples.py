"""The training examples: alone, in two parts, and through the switch."""

import importlib
import json
import os
import runpy
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE_S

pytest.importorskip("torch")

import checkpoint_training as training
import torch
from torch_ranks import run_several

from peelsum.topology import Star
from peelsum.torch import HookConfigError, SwitchAllreduceState

EXAMPLES = Path(__file__).parents[2] / "examples"
#: The models that the examples train.
MODELS = {"train_ncf": "ncf", "train_lm": "lstm", "train_vgg19": "vgg19", "train_bert": "bert"}


@pytest.fixture
def digest(monkeypatch, capsys):
    """Run an example with these arguments; return the digest of its parameters, and what it says."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("WORLD_SIZE", "RANK", "PEELSUM_JOB", "PEELSUM_SEAT"):
        monkeypatch.delenv(name, raising=False)

    def trained(example, *arguments):
        monkeypatch.setattr(sys, "argv", [example, "--every", "1", *arguments])
        runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
        said = capsys.readouterr().out
        return said.partition("parameters: ")[2].strip(), said

    yield trained
    for name in ("training_loop", "checkpoints"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("train_bert", "train_lm") else [])
        for name in MODELS
    ],
)
def test_training_in_two_parts(digest, tmp_path, example):
    """It ends with the same bits as in one."""
    folder = ("--checkpoint", str(tmp_path / "kept"))
    whole, said = digest(example, "--steps", "3")
    assert said.startswith(f"{MODELS[example]}, ")
    assert "step 2: loss " in said
    begun, _ = digest(example, "--steps", "2", *folder)
    assert begun != whole
    again, said = digest(example, "--steps", "3", *folder)
    assert "step 2: " not in said
    assert again == whole
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["rank0.2.pt", "rank0.3.pt"]


def test_a_hook_goes_on_with_what_it_had_not_sent(tmp_path):
    """Each of two ranks restores its own residuals, without which the parameters would differ."""
    kept, lost, work = str(tmp_path / "kept"), str(tmp_path / "lost"), training.with_hook
    works = {"whole": (work, 5, None), "kept, begin": (work, 3, kept), "lost, begin": (work, 3, lost)}
    works |= {"kept": (work, 5, kept), "lost": (work, 5, lost, True)}
    trained = run_several(2, works)
    for name, same in (("kept", True), ("lost", False)):
        for (begin, parameters), (_, whole) in zip(trained[name], trained["whole"], strict=True):
            assert begin == 3
            assert np.array_equal(parameters.view(np.int32), whole.view(np.int32)) is same


@pytest.mark.parametrize(("kept", "asked"), [("with", "without"), ("without", "with")])
def test_another_way_to_sum_is_refused(monkeypatch, tmp_path, kept, asked):
    """The error is one line, before anything is loaded."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    checkpoints = importlib.import_module("checkpoints")

    def of(way):
        model = torch.nn.Linear(2, 2)
        state = SwitchAllreduceState(names=model.named_parameters()) if way == "with" else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        return model, checkpoints.Checkpoints(str(tmp_path), 0, model, optimizer, state)

    of(kept)[1].save(2)
    model, other = of(asked)
    before = model.weight.detach().clone()
    with pytest.raises(HookConfigError) as refused:
        other.restore()
    assert torch.equal(model.weight, before)
    assert str(refused.value) == (
        f"checkpoint: {tmp_path / 'rank0.2.pt'} is of a training {kept} `--sum switch`, and this is one "
        f"{asked} it; continue {kept} it, or give another folder"
    )


def test_another_model_is_refused(digest, tmp_path):
    folder = ("--checkpoint", str(tmp_path), "--steps", "1")
    digest("train_ncf", *folder)
    with pytest.raises(SystemExit) as ended:
        digest("train_vgg19", *folder)
    assert str(ended.value) == (
        f"rank 0: HookConfigError: checkpoint: {tmp_path / 'rank0.1.pt'} is of another model; continue with "
        "the options of that training, or give another folder"
    )


@pytest.mark.parametrize(("before", "now"), [(2, 3), (3, 2)])
def test_another_number_of_ranks_is_refused(tmp_path, before, now):
    """Else the training would begin again, or go on without the residuals of some ranks."""
    run_several(before, {"begin": (training.with_hook, 3, str(tmp_path))})
    (said,) = run_several(now, {"again": (training.refusal, 5, str(tmp_path))}).values()
    counts = f"a training of {before} ranks, and this is one of {now}; start {before}"
    assert said == [f"checkpoint: {tmp_path} is of {counts}, or give another folder"] * now


def test_data_that_are_missing_are_one_line(digest):
    with pytest.raises(
        SystemExit, match=r"^rank 0: TrainingDataError: nothing: does not exist; pass MovieLens"
    ):
        digest("train_ncf", "--data", "nothing")


def test_an_example_says_so_and_ends(digest, monkeypatch, tmp_path):
    folder = ("--checkpoint", str(tmp_path))
    digest("train_ncf", "--steps", "1", *folder)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    try:
        with pytest.raises(SystemExit) as ended:
            digest("train_ncf", "--steps", "2", *folder, "--sum", "switch")
    finally:
        torch.distributed.destroy_process_group()
    assert str(ended.value).startswith(f"rank 0: HookConfigError: checkpoint: {tmp_path}")
    assert "\n" not in str(ended.value)


def test_ranks_are_needed_to_sum(digest):
    with pytest.raises(SystemExit, match=r"^--sum gloo: no ranks; start them with torchrun or "):
        digest("train_ncf", "--steps", "1", "--sum", "gloo")


@pytest.mark.system
def test_ranks_at_seats_train_through_a_switch(kept_port):
    """Workers started as by `peelsum exec` take rank and number of workers from the seat."""
    left_out = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
    given = {name: value for name, value in os.environ.items() if name not in left_out}
    given |= {"MASTER_PORT": str(kept_port.number), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(EXAMPLES / "train_ncf.py"), "--sum", "switch", "--steps", "3"]
    with Star(2) as star:
        seats = [json.dumps(asdict(seat)) for seat in star.seats]
        ranks = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=given | {"PEELSUM_SEAT": seat},
            )
            for seat in seats
        ]
        try:
            said = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    (first, _), (second, _) = said
    assert "2 ranks" in first
    assert "step 3: loss" in first
    assert "switch: " in first
    assert not second

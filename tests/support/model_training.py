"""The ranks' part in tests of the four models: each is trained at a tiny size, over a chosen backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from peelsum.allreduce import Summation
from peelsum.torch import SwitchAllreduceState, hook
from peelsum.training import MODELS, ModelName, Task, bert, lstm, ncf, vgg19
from peelsum.transport.seats import plug_in

STEPS = 20
#: A text that does not change, for all that read words.
_TEXT = Path(__file__).parents[2] / "LICENSE"
_QUESTIONS, _IMAGES = "train.json", "data_batch_1.bin"
_TINY: dict[ModelName, Callable[[Path], Task]] = {
    "ncf": lambda _: ncf.make(ncf.NcfSize(8, (16, 8), 16, users=200, items=100), None),
    "lstm": lambda _: lstm.make(lstm.LstmSize(16, 1, 0.0, 4, 8, samples=32, vocabulary=400), _TEXT),
    "vgg19": lambda data: vgg19.make(vgg19.Vgg19Size(32, 32, 4), data),
    "bert": lambda data: bert.make(bert.BertSize(1, 32, 2, 400, positions=64, length=64, batch=4), data),
}

Parameters = dict[ModelName, np.ndarray]


def make_data(folder: Path) -> None:
    """Questions and images for the tiny models, the same in every run."""
    words = _TEXT.read_text().split()
    paragraphs = []
    for at in range(0, len(words) - 40, 40):
        asked = {
            "question": " ".join(words[at + 2 : at + 5]),
            "answers": [{"answer_start": 0, "text": words[at]}],
        }
        paragraphs.append({"context": " ".join(words[at : at + 40]), "qas": [asked]})
    (folder / _QUESTIONS).write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    records = np.random.default_rng(0).integers(0, 256, (64, 1 + 3 * 32 * 32), np.uint8)
    records[:, 0] %= 10
    records.tofile(folder / _IMAGES)


def by_gloo(rank: int, data: Path, words: bool, missing: int | None = None) -> Parameters:
    """Each model's parameters, float32, after training by DDP alone or, with `words`, by the hook over gloo.

    missing: a step whose gradient rank 1 does not contribute.
    """
    return {model: _train(rank, model, data, "gloo" if words else None, missing) for model in MODELS}


def by_switch(rank: int, data: Path, seats: Sequence[Mapping[str, Any]], first: int) -> Parameters:
    """The same over a switch, into which rank `first` plugs before the others."""
    if rank != first:
        dist.barrier()
    with plug_in(seats[rank]) as summation:
        if rank == first:
            dist.barrier()
        return {model: _train(rank, model, data, summation) for model in MODELS}


def untrained(model: ModelName, data: Path) -> np.ndarray:
    """Parameters at first."""
    return _flat(_task(model, data).model)


def _task(model: ModelName, data: Path) -> Task:
    torch.manual_seed(0)
    return _TINY[model](data)


def _train(
    rank: int, model: ModelName, data: Path, over: str | Summation | None, missing: int | None = None
) -> np.ndarray:
    task = _task(model, data)
    torch.manual_seed(rank)
    network = DistributedDataParallel(task.model)
    state = None
    if over is not None:
        names = task.model.named_parameters()
        state = SwitchAllreduceState(over=over, names=names)
        network.register_comm_hook(state, hook)
    # Not the task's Adam: where a gradient should be zero, as of keys' biases, it makes a step of rounding.
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05)
    for step, batch in enumerate(islice(task.batches(rank, dist.get_world_size(), 0), STEPS)):
        optimizer.zero_grad()
        loss = network(*batch)
        (0 * loss if rank == 1 and step == missing else loss).backward()
        optimizer.step()
    if state is not None:
        state.close()
    return _flat(task.model)


def _flat(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy().copy()

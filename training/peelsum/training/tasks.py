"""Make training tasks by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch

from peelsum.training import bert, lstm, ncf, vgg19
from peelsum.training.errors import TrainingDataError
from peelsum.training.task import Task

ModelName = Literal["ncf", "lstm", "vgg19", "bert"]
MODELS: tuple[ModelName, ...] = get_args(ModelName)
#: The data that each model accepts.
DATA: dict[ModelName, str] = {
    "ncf": "MovieLens' ratings.csv, or its folder",
    "lstm": "a text in the format of Penn Treebank or WikiText, or its folder",
    "vgg19": "the folder of CIFAR-10's binary version, or one with a folder of images for each class",
    "bert": "SQuAD's train-v1.1.json, or its folder",
}
#: The function that makes each model's task, small (True) and at the published size.
_MAKERS: dict[ModelName, dict[bool, Callable[[Path | None], Task]]] = {
    "ncf": {True: partial(ncf.make, ncf.SMALL), False: partial(ncf.make, ncf.FULL)},
    "lstm": {True: partial(lstm.make, lstm.SMALL), False: partial(lstm.make, lstm.FULL)},
    "vgg19": {True: partial(vgg19.make, vgg19.SMALL), False: partial(vgg19.make, vgg19.FULL)},
    "bert": {True: partial(bert.make, bert.SMALL), False: partial(bert.make, bert.FULL)},
}


def make_task(name: ModelName, *, small: bool = True, path: str | Path | None = None, seed: int = 0) -> Task:
    """Return the task of a model, with parameters drawn from `seed`.

    The data are those at `path`, or if None, some that every machine has. `small` selects a small model
    instead of the published size. Raises TrainingDataError if the data are missing or in the wrong format.
    """
    torch.manual_seed(seed)
    if path is not None and not Path(path).exists():
        raise TrainingDataError(f"{path}: does not exist; pass {DATA[name]}")
    return _MAKERS[name][small](None if path is None else Path(path))

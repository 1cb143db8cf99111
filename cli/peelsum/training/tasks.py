"""Training tasks by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from peelsum.training import bert, lstm, ncf, vgg19
from peelsum.training.task import Task, TrainingDataError

ModelName = Literal["ncf", "lstm", "vgg19", "bert"]
MODELS: tuple[ModelName, ...] = get_args(ModelName)
#: The data that each model accepts.
DATA: dict[ModelName, str] = {
    "ncf": "MovieLens' ratings.csv, or its folder",
    "lstm": "a text in the format of Penn Treebank or WikiText, or its folder",
    "vgg19": "the folder of CIFAR-10's binary version, or one with a folder of images for each class",
    "bert": "SQuAD's train-v1.1.json, or its folder",
}
#: Modules with the sizes SMALL and FULL, which is the published one, and `make(size, path)`.
_MODULES: dict[ModelName, Any] = {"ncf": ncf, "lstm": lstm, "vgg19": vgg19, "bert": bert}


def check_model(name: str) -> None:
    """Raise TrainingDataError unless `make_task` knows the model, or can import it as MODULE:FUNCTION."""
    if name not in MODELS:
        _import_function(name)


def make_task(
    name: ModelName | str, *, small: bool = True, path: str | Path | None = None, seed: int = 0
) -> Task:
    """Return the task of a model, with random parameters from `seed`.

    A name MODULE:FUNCTION is that of a user's function without arguments, which returns a Task. The data are
    those at `path`; None stands for data that every machine has. `small` selects a small model instead of
    the published size. Raises TrainingDataError if the data are missing or in the wrong format.
    """
    torch.manual_seed(seed)
    if name not in MODELS:
        return _import_function(name)()
    if path is not None and not Path(path).exists():
        raise TrainingDataError(f"{path}: does not exist; pass {DATA[name]}")
    module = _MODULES[name]
    task: Task = module.make(module.SMALL if small else module.FULL, None if path is None else Path(path))
    return task


def _import_function(name: str) -> Callable[[], Task]:
    """Import the function of a name MODULE:FUNCTION, from the current folder too."""
    module, _, function = name.partition(":")
    if not function:
        models = ", ".join(MODELS)
        raise TrainingDataError(f"--model: {name!r} is unknown; use {models}, or MODULE:FUNCTION of your own")
    sys.path.insert(0, str(Path.cwd()))
    try:
        task_function: Callable[[], Task] = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise TrainingDataError(f"--model: {name!r} cannot be imported: {error}; run in its folder") from None
    finally:
        sys.path.pop(0)
    return task_function

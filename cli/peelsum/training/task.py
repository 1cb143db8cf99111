"""Training tasks: a model and everything needed to train it, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from peelsum.reading import check_regular

#: The models. Each has a module of its name with the sizes SMALL and FULL, which is the published one, and a
#: function `make(size, path)`.
ModelName = Literal["ncf", "lstm", "vgg19", "bert"]
MODELS: tuple[ModelName, ...] = get_args(ModelName)
#: The data that each model accepts.
DATA: dict[ModelName, str] = {
    "ncf": "MovieLens' ratings.csv, or its folder",
    "lstm": "a text in the format of Penn Treebank or WikiText, or its folder",
    "vgg19": "the folder of CIFAR-10's binary version, or one with a folder of images for each class",
    "bert": "SQuAD's train-v1.1.json, or its folder",
}
#: The arguments of one call of the model.
Batch = tuple[torch.Tensor, ...]


class TrainingDataError(ValueError):
    """Data that are missing or in the wrong format. The message names the path, the reason and the remedy."""


@dataclass(frozen=True)
class Task:
    """A model and everything needed to train it, the same on every worker."""

    name: str
    """The model's name."""
    data: str
    """Description of the data."""
    model: nn.Module
    """Returns the mean loss of a batch, so that a wrapper such as DDP covers the whole computation."""
    batches: Callable[[int, int, int], Iterator[Batch]]
    """batches(rank, workers, seed) yields batches of that worker's share of the data, without end.

    Equal arguments give equal batches.
    """
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    """Returns the optimizer of the model's parameters."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread of torch: how many there are can change the last bits of a gradient."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def require(items: str, count: int, workers: int) -> None:
    """Raise TrainingDataError, which names the `items`, unless there is one for each worker."""
    if count < workers:
        raise TrainingDataError(f"{items}: {count} are too few for {workers} workers; pass {workers} or more")


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
    if path is not None:
        if not Path(path).exists():
            raise TrainingDataError(f"{path}: does not exist; pass {DATA[name]}")
        try:
            check_regular(Path(path))
        except OSError as error:
            raise TrainingDataError(f"{path}: {error.strerror}; pass {DATA[name]}") from None
    module: Any = import_module(f"peelsum.training.{name}")
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

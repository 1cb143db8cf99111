"""Neural collaborative filtering: who likes what, from MovieLens' ratings or from a power law.

The model is NeuMF (He et al., WWW'17, arXiv 1708.05031). An embedding has a row for each user and each item,
and a batch touches few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from peelsum.training.errors import TrainingDataError
from peelsum.training.task import Batch, Task

#: Pairs that are not in the data, for each that is.
NEGATIVES = 4
#: Of the power law.
_RATINGS_OF_A_USER = 40
_EXPONENT = 0.8
#: Users and items fall into so many tastes; a user stays within its own this often.
_TASTES, _FAITHFUL = 8, 0.7


@dataclass(frozen=True)
class Size:
    """factors: of the matrix factorisation; layers: widths of the perceptron, its two embeddings first.

    users, items: of the power law.
    """

    factors: int
    layers: tuple[int, ...]
    batch: int
    users: int
    items: int


#: MLPerf Training v0.5's, with as many users and items as MovieLens' ml-20m; and with as many as ml-1m.
FULL = Size(64, (256, 256, 128, 64), 2048, 138_493, 26_744)
SMALL = Size(16, (64, 32, 16), 256, 6040, 3706)


class NeuMF(nn.Module):
    """Matrix factorisation and a perceptron side by side, each with embeddings of its own."""

    def __init__(self, users: int, items: int, size: Size) -> None:
        super().__init__()
        half = size.layers[0] // 2
        self.users, self.items = nn.Embedding(users, size.factors), nn.Embedding(items, size.factors)
        self.perceptron_users, self.perceptron_items = nn.Embedding(users, half), nn.Embedding(items, half)
        widths = zip(size.layers, size.layers[1:], strict=False)
        self.perceptron = nn.Sequential(*(part for a, b in widths for part in (nn.Linear(a, b), nn.ReLU())))
        self.score = nn.Linear(size.factors + size.layers[-1], 1)
        for module in self.children():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.1)

    def forward(self, user: torch.Tensor, item: torch.Tensor, likes: torch.Tensor) -> torch.Tensor:
        """Binary cross-entropy of pairs `user`, `item` int64[n], against `likes` float32[n] of 0 and 1."""
        product = self.users(user) * self.items(item)
        mixed = self.perceptron(torch.cat((self.perceptron_users(user), self.perceptron_items(item)), 1))
        score = self.score(torch.cat((product, mixed), 1)).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(score, likes)


@dataclass(frozen=True)
class Ratings:
    """Who rated what, int64[n] each, numbered from 0."""

    user: NDArray[np.int64]
    item: NDArray[np.int64]
    users: int
    items: int


def power_law(users: int, items: int, seed: int = 0) -> Ratings:
    """Ratings whose items' popularity falls with a power of their rank; users prefer a taste."""
    rng = np.random.default_rng(seed)
    popularity = np.arange(1, items + 1) ** -_EXPONENT
    user = rng.integers(0, users, users * _RATINGS_OF_A_USER)
    item = rng.choice(items, user.size, p=popularity / popularity.sum())
    own = np.minimum(item - item % _TASTES + user % _TASTES, items - 1)
    item = np.where(rng.random(user.size) < _FAITHFUL, own, item)
    return Ratings(user, item, users, items)


def movielens(path: Path) -> Ratings:
    """Ratings of MovieLens (ml-20m, ml-latest): `ratings.csv`, or the folder that holds it."""
    file = path / "ratings.csv" if path.is_dir() else path
    try:
        columns = np.loadtxt(file, np.int64, delimiter=",", skiprows=1, usecols=(0, 1), ndmin=2)
    except (OSError, ValueError, IndexError) as error:
        raise TrainingDataError(
            f"{file}: {error}; pass MovieLens' ratings.csv, with columns userId,movieId, or its folder"
        ) from error
    users, user = np.unique(columns[:, 0], return_inverse=True)
    items, item = np.unique(columns[:, 1], return_inverse=True)
    return Ratings(user, item, len(users), len(items))


def make(size: Size, path: Path | None) -> Task:
    """NeuMF on the ratings at `path`, or on a power law."""
    ratings = power_law(size.users, size.items) if path is None else movielens(path)

    def batches(rank: int, workers: int, seed: int) -> Iterator[Batch]:
        return _batches(ratings, size.batch, rank, workers, seed)

    data = "ratings by a power law" if path is None else f"MovieLens' ratings in {path}"
    model = NeuMF(ratings.users, ratings.items, size)
    return Task("ncf", data, model, batches, _optimizer)


def _batches(ratings: Ratings, batch: int, rank: int, workers: int, seed: int) -> Iterator[Batch]:
    """Pairs of this worker's share, each with items drawn by chance, which are taken for disliked."""
    rng = np.random.default_rng([seed, rank])
    user, item = ratings.user[rank::workers], ratings.item[rank::workers]
    if not user.size:
        raise TrainingDataError(f"ratings: {ratings.user.size} are too few for {workers} workers")
    while True:
        drawn = rng.integers(0, user.size, batch)
        others = rng.integers(0, ratings.items, batch * NEGATIVES)
        users = np.concatenate((user[drawn], np.repeat(user[drawn], NEGATIVES)))
        likes = np.zeros(users.size, np.float32)
        likes[:batch] = 1
        items = np.concatenate((item[drawn], others))
        yield torch.from_numpy(users), torch.from_numpy(items), torch.from_numpy(likes)


def _optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return cast(torch.optim.Optimizer, torch.optim.Adam(parameters, lr=2e-3))

"""Neural collaborative filtering on MovieLens' ratings, or on ratings drawn from a power law.

The model is NeuMF (He et al., WWW'17, arXiv 1708.05031). Its embeddings have a row for each user or item; a
batch uses few of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from peelsum.training.task import Batch, Task, TrainingDataError, require

#: Negative samples per rated pair.
NEGATIVES = 4
#: Parameters of the power law.
_RATINGS_PER_USER = 40
_EXPONENT = 0.8
#: Number of groups of users and items, and the share of ratings in which users prefer items of their group.
TASTES = 8
_PREFERENCE = 0.7


@dataclass(frozen=True)
class NcfSize:
    """The model's hyper-parameters, and the size of the power law's data."""

    factors: int
    """Factors of the matrix factorization."""
    layers: tuple[int, ...]
    """Widths of the perceptron's layers; the first is that of its two embeddings together."""
    batch: int
    """Rated pairs per batch, to which negative samples are added."""
    users: int
    """Users of the power law."""
    items: int
    """Items of the power law."""


#: MLPerf Training v0.5's model, with as many users and items as MovieLens' ml-20m.
FULL = NcfSize(64, (256, 256, 128, 64), 2048, 138_493, 26_744)
#: A smaller model, with as many users and items as ml-1m.
SMALL = NcfSize(16, (64, 32, 16), 256, 6040, 3706)


class NeuMF(nn.Module):
    """A matrix factorization and a perceptron in parallel, each with its own embeddings."""

    def __init__(self, users: int, items: int, size: NcfSize) -> None:
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
        """Return the binary cross-entropy of pairs `user`, `item` int64[n] and `likes` float32[n], 0 or 1."""
        return nn.functional.binary_cross_entropy_with_logits(self.scores(user, item), likes)

    def scores(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """Return the scores float32[n] of the pairs `user`, `item` int64[n]: higher is liked more."""
        product = self.users(user) * self.items(item)
        output = self.perceptron(torch.cat((self.perceptron_users(user), self.perceptron_items(item)), 1))
        score: torch.Tensor = self.score(torch.cat((product, output), 1))
        return score.squeeze(1)


@dataclass(frozen=True)
class Ratings:
    """Pairs of a user and an item that the user rated."""

    user: NDArray[np.int64]
    """int64[n], numbered from 0."""
    item: NDArray[np.int64]
    """int64[n], numbered from 0."""
    users: int
    items: int

    def batch(self, numbers: NDArray[np.int64], rng: np.random.Generator) -> Batch:
        """Return the pairs with these numbers, and for each `NEGATIVES` random pairs, not liked."""
        users = np.concatenate((self.user[numbers], np.repeat(self.user[numbers], NEGATIVES)))
        items = np.concatenate((self.item[numbers], rng.integers(0, self.items, numbers.size * NEGATIVES)))
        likes = np.zeros(users.size, np.float32)
        likes[: numbers.size] = 1
        return torch.from_numpy(users), torch.from_numpy(items), torch.from_numpy(likes)


def power_law(users: int, items: int, seed: int = 0) -> Ratings:
    """Draw 40 ratings per user.

    An item's popularity decreases with a power of its rank. User and item numbers modulo `TASTES` are groups,
    and users prefer items of their group.
    """
    rng = np.random.default_rng(seed)
    popularity = np.arange(1, items + 1) ** -_EXPONENT
    user = rng.integers(0, users, users * _RATINGS_PER_USER)
    item = rng.choice(items, user.size, p=popularity / popularity.sum())
    preferred = np.minimum(item - item % TASTES + user % TASTES, items - 1)
    item = np.where(rng.random(user.size) < _PREFERENCE, preferred, item)
    return Ratings(user, item, users, items)


def movielens(path: Path) -> Ratings:
    """Read MovieLens' ratings (ml-20m, ml-latest) from `ratings.csv`, or from the folder that contains it.

    Raises TrainingDataError if the file cannot be read.
    """
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


def make(size: NcfSize, path: Path | None) -> Task:
    """Return the training of NeuMF on MovieLens' ratings at `path`; None draws ratings from a power law."""
    ratings = power_law(size.users, size.items) if path is None else movielens(path)

    def batches(rank: int, workers: int, seed: int) -> Iterator[Batch]:
        require("ratings", ratings.user.size, workers)
        rng = np.random.default_rng([seed, rank])
        share = np.arange(rank, ratings.user.size, workers)
        while True:
            yield ratings.batch(share[rng.integers(0, share.size, size.batch)], rng)

    data = "ratings by a power law" if path is None else f"MovieLens' ratings in {path}"
    model = NeuMF(ratings.users, ratings.items, size)
    return Task("ncf", data, model, batches, partial(torch.optim.Adam, lr=2e-3))

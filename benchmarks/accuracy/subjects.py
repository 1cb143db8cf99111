"""The subjects of training: small models with examples, and a measure of learning on held-out data.

The data need no download: scikit-learn's digits, the text of Python's standard library, and two generated
sets, images of gratings and ratings by a power law. Workers' shares may differ by the examples' labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from peelsum.training import Batch
from peelsum.training.lstm import LanguageModel
from peelsum.training.lstm import LstmSize as LanguageSize
from peelsum.training.ncf import TASTES, NeuMF, Ratings, power_law
from peelsum.training.ncf import NcfSize as RatingsSize
from peelsum.training.text import Text, standard_library
from peelsum.training.vgg19 import ArrayImages, Vgg19, digits
from peelsum.training.vgg19 import Vgg19Size as ImagesSize

SubjectName = Literal["digits", "images", "ratings", "text", "transformer"]
SUBJECTS: tuple[SubjectName, ...] = get_args(SubjectName)
Numbers = NDArray[np.int64]

_TRAINED_DIGITS, _IMAGES, _HELD_OUT_IMAGES = 1437, 4000, 500
_RATINGS = RatingsSize(8, (32, 16, 8), batch=128, users=1000, items=500)
_VOCABULARY, _LENGTH, _WORDS = 1000, 16, 200_000
_LANGUAGE = LanguageSize(48, 1, 0.0, batch=16, length=_LENGTH, samples=_VOCABULARY, vocabulary=_VOCABULARY)
#: Every tenth sequence of the text is held out, of which this many are measured.
_HELD_OUT_EVERY, _HELD_OUT_SEQUENCES = 10, 200
#: Sections of the text, by which shares may differ.
_SECTIONS = 10
#: An item that a user rated competes with this many others, and is found if it is among the first ten.
_OTHERS, _FIRST = 99, 10


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and all that is needed to train it and to measure it."""

    data: str
    """Description of the data, for humans."""
    metric: str
    """The name of what `measure` returns. More of it is better, unless it is a perplexity."""
    model: nn.Module
    """Returns the mean loss of a batch."""
    labels: Numbers
    """int64[n]: the label of each training example, by which shares may differ."""
    batch: Callable[[Numbers, np.random.Generator], Batch]
    """Returns the batch of the training examples with these numbers; negative samples are drawn."""
    measure: Callable[[], float]
    """Returns the metric of the model as it is, on data held out."""
    rate: float
    """The optimizer's learning rate."""
    batch_size: int
    """Examples of a worker's batch."""
    steps: int
    """Steps after which dense training no longer improves much."""
    measurements: int
    """How often the metric is measured in these steps."""
    optimizer: Literal["sgd", "adam"] = "adam"

    @property
    def every(self) -> int:
        """Steps between two measurements."""
        return -(-self.steps // self.measurements)

    def make_optimizer(self, momentum: float) -> torch.optim.Optimizer:
        """Return the optimizer of the model's parameters. `momentum` is for SGD only."""
        if self.optimizer == "adam":
            return torch.optim.Adam(self.model.parameters(), lr=self.rate)
        return torch.optim.SGD(self.model.parameters(), lr=self.rate, momentum=momentum)


def make_subject(name: SubjectName, seed: int = 0) -> Subject:
    """Return a subject whose parameters are drawn from `seed`; its data are always the same.

    Raises TrainingDataError if scikit-learn, which has the digits, is missing.
    """
    torch.manual_seed(seed)
    return _MAKERS[name]()


def _digits() -> Subject:
    images = _small_digits()
    subject = _classifier(SmallConvNet(images.classes), images, _TRAINED_DIGITS)
    about = "scikit-learn's handwritten digits"
    return replace(subject, data=about, optimizer="sgd", rate=0.05, steps=240, measurements=24)


def _images() -> Subject:
    images = _gratings()
    return _classifier(Vgg19(images.classes, ImagesSize(SIDE, 16, batch=16)), images, _IMAGES)


def _classifier(model: SmallConvNet | Vgg19, images: ArrayImages, trained: int) -> Subject:
    """Return a subject that learns the first `trained` images; the others are held out."""

    def accuracy() -> float:
        held_out = np.arange(trained, images.labels.size)
        return _right(model, *images.batch(held_out)) / held_out.size

    return Subject(
        data="gratings in colour and noise, generated here",
        metric="accuracy",
        model=model,
        labels=images.labels[:trained],
        batch=lambda numbers, _: images.batch(numbers),
        measure=accuracy,
        rate=1e-3,
        batch_size=16,
        steps=320,
        measurements=16,
    )


def _ratings() -> Subject:
    train, user, candidates = _split_ratings()
    model = NeuMF(train.users, train.items, _RATINGS)
    return Subject(
        data="ratings by a power law, generated here",
        metric=f"hit rate at {_FIRST}",
        model=model,
        labels=train.user % TASTES,
        batch=train.batch,
        measure=partial(_hit_rate, model, user, candidates),
        rate=1e-2,
        batch_size=_RATINGS.batch,
        steps=320,
        measurements=20,
    )


def _text() -> Subject:
    # No sample: the softmax is over the vocabulary.
    no_sample = torch.empty(0, dtype=torch.int64)
    return _language(LanguageModel(_VOCABULARY, _LANGUAGE), 2e-2, no_sample)


def _transformer() -> Subject:
    return _language(SmallTransformer(_VOCABULARY, 48, 1, _LENGTH), 6e-3)


def _language(model: nn.Module, rate: float, *arguments: torch.Tensor) -> Subject:
    """Return a language model that is called with words, the words that follow, and further arguments."""
    train, held_out, labels = _sequences()

    def batch(windows: Numbers) -> Batch:
        words = torch.from_numpy(windows)
        return words[:, :-1], words[:, 1:], *arguments

    return Subject(
        data="the text of Python's standard library",
        metric="perplexity",
        model=model,
        labels=labels,
        batch=lambda numbers, _: batch(train[numbers]),
        measure=partial(_perplexity, model, batch(held_out)),
        rate=rate,
        batch_size=_LANGUAGE.batch,
        steps=300,
        measurements=20,
    )


_MAKERS: dict[SubjectName, Callable[[], Subject]] = {
    "digits": _digits,
    "images": _images,
    "ratings": _ratings,
    "text": _text,
    "transformer": _transformer,
}


@cache
def _small_digits() -> ArrayImages:
    """Return the digits in random order, grey, at their own 8 x 8 pixels."""
    images = digits()
    order = np.random.default_rng(0).permutation(images.labels.size)
    pixels = ((images.at(order) + 1) * 127.5).round().astype(np.uint8)
    return ArrayImages(pixels[:, :1, ::4, ::4], images.labels[order], images.classes)


@cache
def _gratings() -> ArrayImages:
    return gratings(_IMAGES + _HELD_OUT_IMAGES)


@cache
def _split_ratings() -> tuple[Ratings, Numbers, Numbers]:
    """Return the ratings to learn; users int64[n]; their last item and 99 random others, int64[n, 100]."""
    every = power_law(_RATINGS.users, _RATINGS.items)
    user, last = np.unique(every.user[::-1], return_index=True)
    last = every.user.size - 1 - last
    kept = np.ones(every.user.size, bool)
    kept[last] = False
    others = np.random.default_rng(1).integers(1, every.items, (user.size, _OTHERS))
    item = every.item[last][:, None]
    candidates = np.concatenate((item, (item + others) % every.items), 1)
    return Ratings(every.user[kept], every.item[kept], every.users, every.items), user, candidates


@cache
def _sequences() -> tuple[Numbers, Numbers, Numbers]:
    """Return sequences to learn int64[n, length + 1], those held out, and the section of each to learn."""
    ids = Text.of(standard_library()[:_WORDS], _VOCABULARY).ids
    windows = ids[: ids.size // (_LENGTH + 1) * (_LENGTH + 1)].reshape(-1, _LENGTH + 1)
    number = np.arange(len(windows))
    held_out = number % _HELD_OUT_EVERY == 0
    measured = windows[held_out]
    few = measured[:: max(len(measured) // _HELD_OUT_SEQUENCES, 1)][:_HELD_OUT_SEQUENCES]
    return windows[~held_out], few, (number * _SECTIONS // len(windows))[~held_out]


@torch.no_grad()
def _right(model: SmallConvNet | Vgg19, images: torch.Tensor, labels: torch.Tensor) -> int:
    """Return how many images a model classifies right."""
    model.eval()
    right = int((model.scores(images).argmax(1) == labels).sum())
    model.train()
    return right


@torch.no_grad()
def _hit_rate(model: NeuMF, user: Numbers, candidates: Numbers) -> float:
    """Return the share of users whose held-out item, the first, is among the ten with the highest scores."""
    users = torch.from_numpy(np.repeat(user, candidates.shape[1]))
    scores = model.scores(users, torch.from_numpy(candidates.reshape(-1))).view(candidates.shape)
    return float(((scores[:, 1:] >= scores[:, :1]).sum(1) < _FIRST).double().mean())


@torch.no_grad()
def _perplexity(model: nn.Module, held_out: Batch) -> float:
    return math.exp(min(float(model(*held_out)), 700.0))


class SmallConvNet(nn.Module):
    """Two convolutions, a pooling layer and two linear layers: 38,282 parameters with 10 classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of `images` float32[n, 1, 8, 8] against `labels` int64[n]."""
        return nn.functional.cross_entropy(self.scores(images), labels)

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores float32[n, classes] of images as `forward` takes them."""
        scores: torch.Tensor = self.classifier(self.features(images).flatten(1))
        return scores


class SmallTransformer(nn.Module):
    """Embeddings of words and positions, encoder layers with a causal mask, and a softmax of all words."""

    def __init__(self, vocabulary: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.softmax = nn.Linear(width, vocabulary)
        for table in (self.words, self.positions):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy, in nats per word, of `following` int64[n, length] after `words`."""
        length = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, words.device)
        embedded = self.words(words) + self.positions(torch.arange(length, device=words.device))
        scores = self.softmax(self.encoder(embedded, mask=mask, is_causal=True))
        return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


CLASSES, SIDE = 10, 32
_DIRECTIONS = 5
#: Waves across an image, and the standard deviation of the noise, where a grating goes from -1 to 1.
_WAVES, _NOISE = (3.0, 6.0), 0.25


def gratings(count: int, seed: int = 0) -> ArrayImages:
    """Return `count` images, the same for the same seed; each class is as likely as any other."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    angle = np.pi * (labels % _DIRECTIONS) / _DIRECTIONS
    waves = 2 * np.pi / SIDE * np.array(_WAVES)[labels // _DIRECTIONS]
    rows, columns = np.mgrid[:SIDE, :SIDE]
    along = np.cos(angle)[:, None, None] * columns + np.sin(angle)[:, None, None] * rows
    wave = np.sin(waves[:, None, None] * along + rng.uniform(0, 2 * np.pi, (count, 1, 1)))
    colours = rng.uniform(0.4, 1, (count, 3, 1, 1)) * rng.choice((-1, 1), (count, 3, 1, 1))
    pixels = wave[:, None] * colours + rng.normal(0, _NOISE, (count, 3, SIDE, SIDE))
    scaled = np.clip(127.5 * (1 + pixels / 2), 0, 255).astype(np.uint8)
    return ArrayImages(scaled, labels.astype(np.int64), CLASSES)


IID, BY_LABEL = "iid", "label"
LEAST_ALPHA, MOST_ALPHA = 0.01, 1000.0


class SharesError(ValueError):
    """Shares that cannot be made. The message names field, value and remedy in one line."""


def divide(labels: Numbers, workers: int, shares: str, seed: int) -> list[Numbers]:
    """Return each worker's examples, as numbers into labels[n]. Every example is in exactly one share.

    shares: "iid" draws them at random, "label" sorts them by label first, and an alpha draws each label's
    division from a Dirichlet distribution. Raises SharesError for other shares, and for an empty share.
    """
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(labels.size)
    if shares == IID:
        divided = [order[worker::workers] for worker in range(workers)]
    elif shares == BY_LABEL:
        divided = np.array_split(order[np.argsort(labels[order], kind="stable")], workers)
    else:
        alpha, parts = _alpha(shares), list[list[Numbers]]()
        for label in np.unique(labels):
            examples = order[labels[order] == label]
            cuts = np.rint(np.cumsum(rng.dirichlet([alpha] * workers)) * examples.size).astype(np.int64)
            parts.append(np.split(examples, cuts[:-1]))
        divided = [np.concatenate(share) for share in zip(*parts, strict=True)]
    for worker, share in enumerate(divided):
        if not share.size:
            raise SharesError(
                f"shares: {shares} leaves worker {worker} without examples; "
                "use fewer workers, or a larger alpha"
            )
    return divided


def _alpha(shares: str) -> float:
    """Return the alpha that a text is. Raises SharesError if it is none."""
    try:
        alpha = float(shares)
    except ValueError:
        raise SharesError(f"shares: {shares!r} is unknown; use iid, label, or an alpha such as 0.5") from None
    if not LEAST_ALPHA <= alpha <= MOST_ALPHA:
        raise SharesError(f"shares: alpha {alpha:g} is out of range; use {LEAST_ALPHA:g} to {MOST_ALPHA:g}")
    return alpha

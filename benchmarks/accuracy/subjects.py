"""The subjects of training: small models with examples, and a measure of learning on held-out data.

The default data needs no download: scikit-learn's digits, the text of Python's standard library, and two
generated sets, images of gratings and ratings by a power law. With a path, a subject reads published data,
and its model has its published size. Workers' shares may differ by the examples' labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.accuracy.small import SIDE, SmallConvNet, SmallTransformer, gratings
from peelsum.training import Batch, TrainingDataError
from peelsum.training.lstm import FULL as FULL_LANGUAGE
from peelsum.training.lstm import LanguageModel
from peelsum.training.lstm import LstmSize as LanguageSize
from peelsum.training.ncf import FULL as FULL_RATINGS
from peelsum.training.ncf import TASTES, NeuMF, Ratings, movielens, power_law
from peelsum.training.ncf import NcfSize as RatingsSize
from peelsum.training.text import Text, standard_library, words_in
from peelsum.training.vgg19 import FULL as FULL_IMAGES
from peelsum.training.vgg19 import ArrayImages, Images, Vgg19, digits, images_in
from peelsum.training.vgg19 import Vgg19Size as ImagesSize

SubjectName = Literal["digits", "images", "ratings", "text", "transformer"]
SUBJECTS: tuple[SubjectName, ...] = get_args(SubjectName)
Numbers = NDArray[np.int64]

_TRAINED_DIGITS, _IMAGES, _HELD_OUT_IMAGES = 1437, 4000, 500
_GRATINGS = ImagesSize(SIDE, 16, batch=16)
_RATINGS = RatingsSize(8, (32, 16, 8), batch=128, users=1000, items=500)
_VOCABULARY, _LENGTH, _WORDS = 1000, 16, 200_000
_LANGUAGE = LanguageSize(48, 1, 0.0, batch=16, length=_LENGTH, samples=_VOCABULARY, vocabulary=_VOCABULARY)
#: Every tenth sequence of the text is held out, of which this many are measured.
_HELD_OUT_EVERY, _HELD_OUT_SEQUENCES = 10, 200
#: Sections of the text, by which shares may differ.
_SECTIONS = 10
#: Words in the vocabulary of published text, as in Penn Treebank's.
_PUBLISHED_VOCABULARY = 10_000
#: Every tenth published image is held out; at most 1,000 of these are measured.
_HELD_OUT_SHARE, _MEASURED_IMAGES = 10, 1000
#: The subjects that have published data, and what models of the published size reach elsewhere.
PUBLISHED: dict[SubjectName, str] = {
    "images": "ImageNet: accuracy 0.745 (VGG19 at one scale, arXiv 1409.1556, table 3)",
    "ratings": "MovieLens 1M: hit rate 0.701 (NeuMF with 32 factors, without pre-training, arXiv 1708.05031)",
    "text": "Penn Treebank: perplexity 78.4 on its test set (large LSTM, arXiv 1409.2329, table 1)",
}
#: An item that a user rated competes with this many others, and is found if it is among the first ten.
_OTHERS, _FIRST = 99, 10


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and all that is needed to train it and to measure it."""

    name: SubjectName
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


def make_subject(name: SubjectName, seed: int = 0, path: Path | None = None) -> Subject:
    """Return a subject whose parameters are drawn from `seed`; its data are always the same.

    path: published data, for a model of published size: CIFAR-10's binary version or a folder of images,
    MovieLens' ratings.csv, or a text with words separated by spaces. The subject's steps are then as many as
    one worker needs for one pass over the data. Raises TrainingDataError if scikit-learn is missing, or if
    the data cannot be read.
    """
    torch.manual_seed(seed)
    if path is not None and name not in PUBLISHED:
        raise TrainingDataError(f"path: {name} has no published data; use {', '.join(PUBLISHED)}")
    subject = _MAKERS[name](path)
    if path is None:
        return subject
    steps = -(-subject.labels.size // subject.batch_size)
    return replace(subject, data=f"{subject.data}; published, {PUBLISHED[name]}", steps=steps)


def _digits(_: Path | None) -> Subject:
    images, about = _small_digits(), "scikit-learn's handwritten digits"
    shares = np.split(np.arange(images.labels.size), [_TRAINED_DIGITS])
    subject = _classifier("digits", SmallConvNet(images.classes), images, shares, about, ImagesSize(8, 1, 16))
    return replace(subject, optimizer="sgd", rate=0.05, steps=240, measurements=24)


def _images(path: Path | None) -> Subject:
    images: Images
    if path is None:
        images, size, about = _generated_images(), _GRATINGS, "gratings in colour and noise, generated here"
        shares = np.split(np.arange(images.labels.size), [_IMAGES])
    else:
        images, size, about = images_in(path, FULL_IMAGES.side), FULL_IMAGES, f"the images in {path}"
        order = np.random.default_rng(0).permutation(images.labels.size)
        held_out = order[::_HELD_OUT_SHARE]
        shares = [np.setdiff1d(order, held_out), held_out[:_MEASURED_IMAGES]]
        if not shares[0].size:
            raise TrainingDataError(f"{path}: has {images.labels.size} images; pass two or more")
    return _classifier("images", Vgg19(images.classes, size), images, shares, about, size)


def _classifier(
    name: SubjectName,
    model: SmallConvNet | Vgg19,
    images: Images,
    shares: Sequence[Numbers],
    about: str,
    size: ImagesSize,
) -> Subject:
    """Return a subject; `shares` has the numbers of the images to learn, and of those to measure."""
    trained, held_out = shares

    def accuracy() -> float:
        parts = np.array_split(held_out, -(-held_out.size // _HELD_OUT_IMAGES))
        return sum(_right(model, *images.batch(part)) for part in parts) / held_out.size

    return Subject(
        name=name,
        data=about,
        metric="accuracy",
        model=model,
        labels=images.labels[trained],
        batch=lambda numbers, _: images.batch(trained[numbers]),
        measure=accuracy,
        rate=1e-3 if size is _GRATINGS else 3e-4,
        batch_size=size.batch,
        steps=320,
        measurements=16,
    )


def _ratings(path: Path | None) -> Subject:
    size, (train, user, candidates) = _RATINGS, _split_ratings()
    if path is not None:
        size, (train, user, candidates) = FULL_RATINGS, _last_held_out(movielens(path))
    model = NeuMF(train.users, train.items, size)
    return Subject(
        name="ratings",
        data="ratings by a power law, generated here" if path is None else f"MovieLens' ratings in {path}",
        metric=f"hit rate at {_FIRST}",
        model=model,
        labels=train.user % TASTES,
        batch=train.batch,
        measure=partial(_hit_rate, model, user, candidates),
        rate=1e-2 if path is None else 2e-3,
        batch_size=size.batch,
        steps=320,
        measurements=20,
    )


def _text(path: Path | None) -> Subject:
    if path is None:
        model = LanguageModel(_VOCABULARY, _LANGUAGE)
        return _language("text", model, _sequences(), _LANGUAGE, rate=2e-2)
    data = _windows(words_in(path), _PUBLISHED_VOCABULARY, FULL_LANGUAGE.length)
    model = LanguageModel(_PUBLISHED_VOCABULARY, FULL_LANGUAGE)
    subject = _language("text", model, data, FULL_LANGUAGE, rate=1e-3)
    return replace(subject, data=f"the text in {path}")


def _transformer(_: Path | None) -> Subject:
    model = SmallTransformer(_VOCABULARY, 48, 1, _LENGTH)
    return _language("transformer", model, _sequences(), _LANGUAGE, rate=6e-3)


def _language(
    name: SubjectName,
    model: nn.Module,
    data: tuple[Numbers, Numbers, Numbers],
    size: LanguageSize,
    rate: float,
) -> Subject:
    """Return a language model on `data`: sequences to learn, those held out, and the section of each."""
    train, held_out, labels = data
    # No sample: the softmax is over the vocabulary.
    also = (torch.empty(0, dtype=torch.int64),) if isinstance(model, LanguageModel) else ()

    def batch(windows: Numbers) -> Batch:
        words = torch.from_numpy(windows)
        return words[:, :-1], words[:, 1:], *also

    return Subject(
        name=name,
        data="the text of Python's standard library",
        metric="perplexity",
        model=model,
        labels=labels,
        batch=lambda numbers, _: batch(train[numbers]),
        measure=partial(_perplexity, model, batch(held_out)),
        rate=rate,
        batch_size=size.batch,
        steps=300,
        measurements=20,
    )


_MAKERS: dict[SubjectName, Callable[[Path | None], Subject]] = {
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
def _generated_images() -> ArrayImages:
    return gratings(_IMAGES + _HELD_OUT_IMAGES)


@cache
def _split_ratings() -> tuple[Ratings, Numbers, Numbers]:
    return _last_held_out(power_law(_RATINGS.users, _RATINGS.items))


def _last_held_out(every: Ratings) -> tuple[Ratings, Numbers, Numbers]:
    """Return the ratings to learn; users int64[n]; their last item and 99 random others, int64[n, 100]."""
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
    return _windows(standard_library()[:_WORDS], _VOCABULARY, _LENGTH)


def _windows(words: Sequence[str], vocabulary: int, length: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return sequences to learn int64[n, length + 1], those held out, and the section of each to learn."""
    ids = Text.of(words, vocabulary).ids
    windows = ids[: ids.size // (length + 1) * (length + 1)].reshape(-1, length + 1)
    if len(windows) < 2:
        raise TrainingDataError(f"text: {ids.size} words are too few; pass {2 * (length + 1)} or more")
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

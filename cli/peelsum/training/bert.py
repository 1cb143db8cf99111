"""BERT (Devlin et al., arXiv 1810.04805), trained to find the span of a passage that answers a question.

The data are SQuAD's JSON. The vocabulary is the data's most frequent words, not WordPiece, so that it need
not be downloaded. Training starts from random weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from peelsum.training.task import Batch, Task, TrainingDataError, require
from peelsum.training.text import Text, standard_library

_WORD = re.compile(r"\w+|[^\w\s]")
_BEGIN, _SEPARATOR, _PADDING = "[CLS]", "[SEP]", "[PAD]"
#: Words of a synthetic passage, of its answer at most, and of the quotations before and after the answer.
_PASSAGE, _ANSWER, _QUOTED = 48, 3, 3


@dataclass(frozen=True)
class BertSize:
    """The paper's hyper-parameters."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int
    length: int
    """Words of question and passage together."""
    batch: int


#: BERT-base, uncased, and the smallest model of Turc et al. (arXiv 1908.08962).
FULL = BertSize(12, 768, 12, vocabulary=30_522, positions=512, length=384, batch=8)
SMALL = BertSize(2, 128, 2, vocabulary=10_000, positions=512, length=64, batch=8)
_DROPOUT = 0.1


class Bert(nn.Module):
    """The encoder, and a linear layer that scores every word as the first and the last of the answer."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.positions, size.width)
        self.segments = nn.Embedding(2, size.width)
        self.norm = nn.LayerNorm(size.width, eps=1e-12)
        self.dropout = nn.Dropout(_DROPOUT)
        layer = nn.TransformerEncoderLayer(
            size.width, size.heads, 4 * size.width, _DROPOUT, "gelu", layer_norm_eps=1e-12, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.ends = nn.Linear(size.width, 2)
        for name, parameter in self.named_parameters():
            if "norm" not in name:
                nn.init.normal_(parameter, std=0.02 if parameter.dim() > 1 else 0.0)

    def forward(
        self, words: torch.Tensor, segments: torch.Tensor, padding: torch.Tensor, answers: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean cross-entropy of the first and last word of `answers`, int64[n, 2].

        `words` and `segments` are int64[n, length]; `padding` is bool[n, length], True after the last word.
        """
        positions = torch.arange(words.shape[1], device=words.device)
        embedded = self.words(words) + self.positions(positions) + self.segments(segments)
        hidden = self.encoder(self.dropout(self.norm(embedded)), src_key_padding_mask=padding)
        scores = self.ends(hidden).masked_fill(padding[..., None], -torch.inf)
        return nn.functional.cross_entropy(scores, answers)


@dataclass(frozen=True)
class Question:
    """A question about a passage, and its answer."""

    question: tuple[str, ...]
    passage: tuple[str, ...]
    answer: tuple[int, int]
    """Indices of the answer's first and last word in the passage."""


def quotations(words: Sequence[str]) -> list[Question]:
    """Return synthetic questions about a text, which ask for the words between two quotations."""
    rng = np.random.default_rng(0)
    words = [word for word in words if word != "\n"]
    questions = []
    for start in range(0, len(words) - _PASSAGE, _PASSAGE):
        passage = tuple(words[start : start + _PASSAGE])
        first = int(rng.integers(_QUOTED, _PASSAGE - _ANSWER - _QUOTED))
        last = first + int(rng.integers(0, _ANSWER))
        question = (*passage[first - _QUOTED : first], "?", *passage[last + 1 : last + 1 + _QUOTED])
        questions.append(Question(question, passage, (first, last)))
    return questions


def squad(path: Path) -> list[Question]:
    """Read the answerable questions from a file in SQuAD's format, 1.1 or 2.0, or a folder's `train*.json`.

    Raises TrainingDataError if there are none.
    """
    files = sorted(path.glob("train*.json")) if path.is_dir() else [path]
    try:
        articles = json.loads(files[0].read_text(encoding="utf-8"))["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        questions = [question for paragraph in paragraphs for question in _questions(paragraph)]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise TrainingDataError(
            f"{path}: {type(error).__name__} {error}; pass a file in SQuAD's format, e.g. train-v1.1.json"
        ) from error
    if not questions:
        raise TrainingDataError(f"{path}: has no question with an answer; pass SQuAD's train-v1.1.json")
    return questions


def _questions(paragraph: dict[str, Any]) -> Iterator[Question]:
    """Yield the answerable questions of a paragraph of SQuAD's JSON, each with its first answer."""
    matches = list(_WORD.finditer(paragraph["context"].lower()))
    passage = tuple(match[0] for match in matches)
    starts = np.array([match.start() for match in matches])
    for question in paragraph["qas"]:
        for answer in question["answers"][:1]:
            begin = int(answer["answer_start"])
            end = begin + max(len(answer["text"]), 1)
            first, last = np.searchsorted(starts, (begin, end - 1), "right") - 1
            if first >= 0:
                yield Question(tuple(_WORD.findall(question["question"].lower())), passage, (first, last))


class Encoded:
    """Questions as arrays: words, segments, padding, answers. Questions that are too long are dropped."""

    def __init__(self, questions: Sequence[Question], size: BertSize) -> None:
        total = len(questions)
        questions = [item for item in questions if len(item.question) + len(item.passage) + 3 <= size.length]
        if not questions:
            raise TrainingDataError(f"questions: none of {total} fits {size.length} words; pass shorter ones")
        rows = [(_BEGIN, *item.question, _SEPARATOR, *item.passage, _SEPARATOR) for item in questions]
        padded = [word for row in rows for word in (*row, *[_PADDING] * (size.length - len(row)))]
        ids = Text.of(padded, size.vocabulary).ids
        self.words: NDArray[np.int64] = ids.reshape(len(rows), size.length)
        passage = np.array([len(item.question) + 2 for item in questions])
        ends = np.array([len(row) for row in rows])
        positions = np.arange(size.length)
        self.segments = (positions >= passage[:, None]).astype(np.int64)
        self.padding = positions >= ends[:, None]
        self.answers = np.array([item.answer for item in questions], np.int64) + passage[:, None]

    def at(self, numbers: NDArray[np.int64]) -> Batch:
        """Return the batch of the questions with these numbers."""
        arrays = (self.words, self.segments, self.padding, self.answers)
        return tuple(torch.from_numpy(array[numbers]) for array in arrays)


def make(size: BertSize, path: Path | None) -> Task:
    """Return BERT on the questions at `path`, or on quotations of Python's standard library."""
    data = Encoded(quotations(standard_library()) if path is None else squad(path), size)

    def batches(rank: int, workers: int, seed: int) -> Iterator[Batch]:
        require("questions", len(data.words), workers)
        rng = np.random.default_rng([seed, rank])
        share = np.arange(rank, len(data.words), workers)
        while True:
            yield data.at(rng.choice(share, size.batch))

    about = "quotations of Python's standard library" if path is None else f"the questions of {path}"
    return Task("bert", about, Bert(size), batches, partial(torch.optim.AdamW, lr=3e-4))

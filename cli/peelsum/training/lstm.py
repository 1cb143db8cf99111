"""A word-level LSTM language model, on a text in the format of Penn Treebank or WikiText.

The full size is the large model of Zaremba et al. (arXiv 1409.2329). If the vocabulary is larger than the
sample, the softmax is sampled, as usual for large vocabularies (Jozefowicz et al., arXiv 1602.02410). The
gradients of both embeddings then have non-zero rows only for words of the batch or the sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from peelsum.training.task import Batch, Task, TrainingDataError
from peelsum.training.text import Text, standard_library, words_in


@dataclass(frozen=True)
class LstmSize:
    """The model's hyper-parameters."""

    width: int
    layers: int
    dropout: float
    batch: int
    length: int
    """Words per sequence."""
    samples: int
    """Negative samples of the softmax, drawn for each batch."""
    vocabulary: int


FULL = LstmSize(1500, 2, 0.65, batch=20, length=35, samples=8192, vocabulary=1_000_000)
SMALL = LstmSize(128, 1, 0.0, batch=8, length=20, samples=256, vocabulary=10_000)


class LanguageModel(nn.Module):
    """An embedding, an LSTM, and a softmax over the vocabulary or over a sample of it."""

    def __init__(self, vocabulary: int, size: LstmSize) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size.width)
        self.lstm = nn.LSTM(size.width, size.width, size.layers, batch_first=True, dropout=size.dropout)
        self.dropout = nn.Dropout(size.dropout)
        self.softmax = nn.Embedding(vocabulary, size.width)
        self.bias = nn.Embedding(vocabulary, 1)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.softmax.weight, -0.1, 0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, words: torch.Tensor, following: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy, in nats per word, of `following` int64[batch, length] after `words`.

        `sample` int64[k] holds the negative samples from `draw`; if empty, the softmax is over the
        vocabulary.
        """
        hidden, _ = self.lstm(self.dropout(self.embedding(words)))
        hidden, target = self.dropout(hidden).flatten(0, 1), following.flatten()
        if not sample.numel():
            scores = hidden @ self.softmax.weight.T + self.bias.weight.T
            return nn.functional.cross_entropy(scores, target)
        positive = (hidden * self.softmax(target)).sum(1) + self.bias(target).squeeze(1)
        negative = hidden @ self.softmax(sample).T + self.bias(sample).T
        # Divide by the expected number of draws: the sum's expectation is then the whole vocabulary's.
        probability = torch.log1p(1 / (sample.double() + 1)) / np.log(self.embedding.num_embeddings + 1)
        negative = negative - torch.log(len(sample) * probability).float()
        negative = negative.masked_fill(target[:, None] == sample, -torch.inf)
        scores = torch.cat((positive[:, None], negative), 1)
        return nn.functional.cross_entropy(scores, torch.zeros_like(target))


def draw(rng: np.random.Generator, vocabulary: int, samples: int) -> torch.Tensor:
    """Draw random words int64[samples] by Zipf's law; none if there are as many samples as words.

    Word i has probability log((i + 2) / (i + 1)) / log(vocabulary + 1).
    """
    if samples >= vocabulary:
        return torch.empty(0, dtype=torch.int64)
    words = np.exp(rng.random(samples) * np.log(vocabulary + 1)).astype(np.int64) - 1
    return torch.from_numpy(np.minimum(words, vocabulary - 1))


def make(size: LstmSize, path: Path | None) -> Task:
    """Return the language model on the text at `path`, or on Python's standard library.

    Workers' shares are parts of the text, cut into `batch` parallel streams.
    """
    text = Text.of(standard_library() if path is None else words_in(path), size.vocabulary)

    def batches(rank: int, workers: int, seed: int) -> Iterator[Batch]:
        rng = np.random.default_rng([seed, rank])
        share = text.ids.size // workers
        stream = share // size.batch
        if stream <= size.length:
            raise TrainingDataError(
                f"text: {text.ids.size} words are too few for {workers} worker{'s' * (workers > 1)}; pass "
                f"{workers * size.batch * (size.length + 1)} or more"
            )
        streams = text.ids[rank * share : rank * share + size.batch * stream].reshape(size.batch, stream)
        while True:
            for start in range(0, stream - size.length, size.length):
                window = torch.from_numpy(streams[:, start : start + size.length + 1])
                yield window[:, :-1], window[:, 1:], draw(rng, len(text.words), size.samples)

    data = "the text of Python's standard library" if path is None else f"the text of {path}"
    model = LanguageModel(len(text.words), size)
    return Task("lstm", data, model, batches, partial(torch.optim.Adam, lr=2e-3))

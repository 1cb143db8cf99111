"""The demo's text: Python's language reference from `pydoc_data.topics`, split into words."""

from __future__ import annotations

import re
from collections import Counter
from pydoc_data.topics import topics
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

WORD = re.compile(r"\w+|[^\w\s]|\n")
UNKNOWN = 0


class Corpus(NamedTuple):
    """A text as word ids (int64[words]); id 0 stands for every word outside the vocabulary."""

    ids: NDArray[np.int64]
    vocabulary_size: int


def load(vocabulary_size: int) -> Corpus:
    """Return the text, in alphabetical order of topics, with its most frequent words as vocabulary."""
    words = [word for name in sorted(topics) for word in WORD.findall(topics[name])]
    frequent = [word for word, _ in Counter(words).most_common(vocabulary_size - 1)]
    number = {word: i for i, word in enumerate(frequent, start=UNKNOWN + 1)}
    return Corpus(np.array([number.get(word, UNKNOWN) for word in words], np.int64), len(number) + 1)


class Shard:
    """One worker's share of the text, read as `batch` parallel streams of `length` words a step.

    `seed` determines where in the streams the first step begins.
    """

    def __init__(
        self, corpus: Corpus, worker_id: int, workers: int, *, batch: int, length: int, seed: int
    ) -> None:
        share = len(corpus.ids) // workers
        ids = corpus.ids[worker_id * share : (worker_id + 1) * share]
        stream = len(ids) // batch
        self._streams = torch.from_numpy(ids[: stream * batch].reshape(batch, stream))
        self._length = length
        self._position = seed % max(1, stream - length - 1)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next words, and for each the word after it: int64[batch, length] each.

        After the last whole step the streams begin again.
        """
        if self._position + self._length + 1 > self._streams.shape[1]:
            self._position = 0
        window = self._streams[:, self._position : self._position + self._length + 1]
        self._position += self._length
        return window[:, :-1], window[:, 1:]

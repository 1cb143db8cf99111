"""The demo's model: a word-level LSTM language model with a plain softmax."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

VOCABULARY_SIZE = 5000
WIDTH = 128


class LanguageModel(nn.Module):
    """An embedding, one LSTM layer and a softmax over the vocabulary: 1.4 M parameters at these sizes.

    The embedding's gradient has a row for each word of the batch and zeros elsewhere.
    """

    def __init__(self, vocabulary_size: int = VOCABULARY_SIZE, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.softmax = nn.Linear(width, vocabulary_size)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return scores float32[batch, length, vocabulary] of the word after each of words[batch, length]."""
        hidden, _ = self.lstm(self.embedding(words))
        return cast(torch.Tensor, self.softmax(hidden))


def loss_of(model: LanguageModel, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy, in nats per word."""
    return nn.functional.cross_entropy(model(words).flatten(0, 1), following.flatten())

"""A small transformer as a language model (Vaswani et al., arXiv 1706.03762): words see those before them."""

from __future__ import annotations

import torch
from torch import nn


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

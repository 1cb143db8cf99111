"""Models and data small enough to be trained to the end in a minute.

A convolutional network for images of 8 x 8 pixels, such as scikit-learn's handwritten digits; a transformer
as a language model (Vaswani et al., arXiv 1706.03762), whose words see those before them; and gratings of
five directions and two frequencies: generated images of CIFAR-10's format and number of classes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from peelsum.training.vgg19 import ArrayImages


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

"""A small convolutional network for images of 8 x 8 pixels, such as scikit-learn's handwritten digits."""

from __future__ import annotations

import torch
from torch import nn


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

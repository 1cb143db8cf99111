"""Generated images of 32 x 32 pixels in ten classes: gratings of five directions and two frequencies.

They have CIFAR-10's format and number of classes, but are synthetic: phase, colours and noise are random.
"""

from __future__ import annotations

import numpy as np

from peelsum.training.vgg19 import ArrayImages

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

"""VGG19 (Simonyan and Zisserman's configuration E, arXiv 1409.1556) on CIFAR-10, image folders or digits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from peelsum.extras import missing_extra_message
from peelsum.training.task import Batch, Task, TrainingDataError, require

#: Channels of each convolution; 0 for a pooling layer.
CONFIGURATION = (64, 64, 0, 128, 128, 0, *[256] * 4, 0, *[512] * 4, 0, *[512] * 4, 0)
#: Factor by which the pooling layers reduce an image's side; the smallest image becomes one pixel.
_REDUCTION = 2 ** CONFIGURATION.count(0)
_CIFAR_SIDE = 32
_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp")


@dataclass(frozen=True)
class Vgg19Size:
    """The model's hyper-parameters."""

    side: int
    """Side of an image in pixels."""
    narrower: int
    """Divisor of all layers' widths."""
    batch: int


FULL = Vgg19Size(224, 1, 32)
SMALL = Vgg19Size(32, 8, 16)


class Vgg19(nn.Module):
    """Sixteen convolutions and three linear layers."""

    def __init__(self, classes: int, size: Vgg19Size) -> None:
        super().__init__()
        self.side = size.side
        layers: list[nn.Module] = []
        channels = 3
        for width in CONFIGURATION:
            if not width:
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(channels, width // size.narrower, 3, padding=1), nn.ReLU()]
            channels = width // size.narrower
        self.features = nn.Sequential(*layers)
        width = 4096 // size.narrower
        output = nn.Linear(width, classes)
        self.classifier = nn.Sequential(
            nn.Linear(channels * (size.side // _REDUCTION) ** 2, width),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(),
            output,
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        nn.init.normal_(output.weight, std=0.01)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of `images` float32[n, 3, side, side] against `labels` int64[n].

        Images of another size are scaled first.
        """
        return nn.functional.cross_entropy(self.scores(images), labels)

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores float32[n, classes] of images as `forward` takes them."""
        if images.shape[-2:] != (self.side, self.side):
            images = nn.functional.interpolate(images, size=(self.side, self.side), mode="bilinear")
        scores: torch.Tensor = self.classifier(self.features(images).flatten(1))
        return scores


class Images:
    """Images with their labels, int64[n], from 0 to `classes` - 1."""

    labels: NDArray[np.int64]
    classes: int

    def at(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the images with these numbers, float32[n, channels, height, width], from -1 to 1."""
        raise NotImplementedError

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Return the images with these numbers, and their labels."""
        return torch.from_numpy(self.at(numbers)), torch.from_numpy(self.labels[numbers])


class ArrayImages(Images):
    """Images in memory, uint8[n, channels, height, width]."""

    def __init__(self, pixels: NDArray[np.uint8], labels: NDArray[np.int64], classes: int) -> None:
        self._pixels, self.labels, self.classes = pixels, labels, classes

    def at(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `Images.at`."""
        return self._pixels[numbers].astype(np.float32) / 127.5 - 1


class FolderImages(Images):
    """Image files in a folder for each class, read on demand and scaled to `side`. Needs Pillow."""

    def __init__(self, path: Path, side: int) -> None:
        folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
        self._side, self.classes = side, len(folders)
        files = [
            (file, label)
            for label, folder in enumerate(folders)
            for file in sorted(folder.rglob("*"))
            if file.suffix.lower() in _SUFFIXES
        ]
        self._files = [file for file, _ in files]
        self.labels = np.array([label for _, label in files], np.int64)

    def at(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `Images.at`."""
        try:
            from PIL import Image
        except ImportError:
            raise TrainingDataError(missing_extra_message("pillow", "training")) from None
        pixels = []
        for number in numbers:
            with Image.open(self._files[number]) as image:
                pixels.append(np.asarray(image.convert("RGB").resize((self._side, self._side)), np.float32))
        return np.stack(pixels).transpose(0, 3, 1, 2) / 127.5 - 1


def digits() -> ArrayImages:
    """Return scikit-learn's handwritten digits of 8 x 8 pixels, enlarged four times.

    Raises TrainingDataError if scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise TrainingDataError(
            f"{missing_extra_message('scikit-learn', 'training')}, "
            "or pass a folder of images instead of its digits"
        ) from None
    digits = load_digits()
    pixels = (digits.images * (255 / 16)).astype(np.uint8).repeat(4, 1).repeat(4, 2)
    return ArrayImages(np.repeat(pixels[:, None], 3, 1), digits.target.astype(np.int64), 10)


def images_in(path: Path, side: int) -> Images:
    """Open CIFAR-10's binary version (`data_batch_1.bin` etc.), or a folder with a folder for each class.

    Raises TrainingDataError if `path` is neither.
    """
    if binary := sorted(path.glob("data_batch_*.bin")):
        # Records of one byte for the label and 3 x 32 x 32 bytes for the image.
        record = 1 + 3 * _CIFAR_SIDE**2
        parts = [np.fromfile(file, np.uint8) for file in binary]
        for file, part in zip(binary, parts, strict=True):
            if part.size == 0 or part.size % record or part[::record].max() > 9:
                raise TrainingDataError(
                    f"{file}: does not consist of records of {record} bytes; pass CIFAR-10's binary version"
                )
        records = np.concatenate(parts).reshape(-1, record)
        pixels = records[:, 1:].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE)
        return ArrayImages(pixels, records[:, 0].astype(np.int64), 10)
    images = FolderImages(path, side) if path.is_dir() else None
    if images is not None and images.labels.size:
        return images
    raise TrainingDataError(
        f"{path}: has no CIFAR-10 files (data_batch_1.bin) and no folder of images; pass a folder with either"
    )


def make(size: Vgg19Size, path: Path | None) -> Task:
    """Return VGG19 on the images at `path`, or on scikit-learn's digits."""
    images = digits() if path is None else images_in(path, size.side)

    def batches(rank: int, workers: int, seed: int) -> Iterator[Batch]:
        require("images", images.labels.size, workers)
        rng = np.random.default_rng([seed, rank])
        share = np.random.default_rng(seed).permutation(images.labels.size)[rank::workers]
        while True:
            yield images.batch(rng.choice(share, size.batch))

    data = "scikit-learn's digits" if path is None else f"the images in {path}"
    return Task("vgg19", data, Vgg19(images.classes, size), batches, partial(torch.optim.Adam, lr=3e-4))

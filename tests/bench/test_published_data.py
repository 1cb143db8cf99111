"""`bench accuracy --path`: published data in their own formats, for models that are made small here."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
if find_spec("sklearn") is None:  # its import takes seconds, of every process that collects tests
    pytest.skip("scikit-learn is not installed", allow_module_level=True)

from benchmarks.accuracy import subjects
from benchmarks.accuracy.subjects import PUBLISHED, make_subject
from peelsum.training import TrainingDataError
from peelsum.training.lstm import LstmSize as LanguageSize
from peelsum.training.ncf import NcfSize as RatingsSize
from peelsum.training.vgg19 import Vgg19Size as ImagesSize


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "FULL_IMAGES", ImagesSize(32, 64, batch=4))
    monkeypatch.setattr(subjects, "FULL_RATINGS", RatingsSize(4, (8, 4), batch=5, users=0, items=0))
    sizes: dict[str, Any] = {"batch": 2, "length": 4, "samples": 0, "vocabulary": 0}
    monkeypatch.setattr(subjects, "FULL_LANGUAGE", LanguageSize(8, 1, 0.0, **sizes))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "ptb.train.txt"
    file.write_text("\n".join(f"the cat {number} sat" for number in range(40)))
    return file


def test_a_tenth_of_the_images_is_held_out(tmp_path: Path) -> None:
    records = np.random.default_rng(0).integers(0, 256, (50, 1 + 3 * 32 * 32), np.uint8)
    records[:, 0] = np.arange(50) % 10
    records.tofile(tmp_path / "data_batch_1.bin")
    subject = make_subject("images", path=tmp_path)
    assert (subject.labels.size, subject.steps, subject.batch_size) == (45, 12, 4)
    every = subject.batch(np.arange(45), np.random.default_rng(0))
    assert np.array_equal(every[1].numpy(), subject.labels)
    trained = {image.tobytes() for image in ((every[0].numpy() + 1) * 127.5).round().astype(np.uint8)}
    assert trained <= {record[1:].tobytes() for record in records}
    assert len(trained) == 45
    assert subject.measure() in {hits / 5 for hits in range(6)}


def test_each_users_last_rating_is_held_out(tmp_path: Path) -> None:
    rows = [(user, 10 * item) for user in (3, 5, 9) for item in range(user)]
    lines = [f"{user},{item},4.0,1" for user, item in rows]
    (tmp_path / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *lines]))
    subject = make_subject("ratings", path=tmp_path)
    assert (subject.labels.size, subject.steps) == (17 - 3, 3)
    users, items, likes = subject.batch(np.arange(14), np.random.default_rng(0))
    assert likes[:14].all()
    assert not likes[14:].any()
    pairs = list(zip(users[:14].tolist(), items[:14].tolist(), strict=True))
    assert pairs == [(number, item) for number, user in enumerate((3, 5, 9)) for item in range(user - 1)]
    assert 0 <= subject.measure() <= 1


def test_every_tenth_sequence_of_a_text_is_held_out(text: Path) -> None:
    subject = make_subject("text", path=text)
    assert (subject.labels.size, subject.steps) == (40 - 4, 18)
    words, following, sample = subject.batch(np.arange(2), np.random.default_rng(0))
    assert words.shape == following.shape == (2, 4)
    assert not sample.numel()
    assert math.isfinite(subject.measure())


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("digits", "path: digits has no published data; use images, ratings, text"),
        ("images", "has no CIFAR-10 files"),
        ("ratings", "pass MovieLens' ratings.csv"),
        ("text", "has no file named *train*"),
    ],
)
def test_data_that_are_not_there_are_one_line(name: Any, error: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError) as raised:
        make_subject(name, path=tmp_path)
    assert error in str(raised.value)


def test_a_text_of_a_few_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a b c")
    with pytest.raises(TrainingDataError, match="4 words are too few; pass 10 or more"):
        make_subject("text", path=tmp_path)


def test_data_name_what_is_published(text: Path) -> None:
    assert make_subject("text", path=text).data == f"the text in {text}; published, {PUBLISHED['text']}"

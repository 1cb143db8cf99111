"""Texts as word numbers: the user's, or Python's standard library, which every machine has."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peelsum.training.task import TrainingDataError

UNKNOWN = 0
END_OF_LINE = "<eos>"
#: Number of words of the standard library; enough for a vocabulary of 10,000.
_LIBRARY_WORDS = 600_000
_WORD = re.compile(r"\w+|[^\w\s]|\n")


@dataclass(frozen=True)
class Text:
    """A text as word numbers, and its vocabulary."""

    ids: NDArray[np.int64]
    """int64[n]: each word's index in `words`, or `UNKNOWN`."""
    words: tuple[str, ...]
    """The vocabulary: `<unk>`, then the most frequent words, in descending order."""

    @classmethod
    def of(cls, words: Sequence[str], vocabulary: int) -> Text:
        """Return the text of these words, whose most frequent `vocabulary` - 1 words get numbers from 1."""
        frequent = ("<unk>", *(word for word, _ in Counter(words).most_common(vocabulary - 1)))
        numbers = {word: i for i, word in enumerate(frequent) if i != UNKNOWN}
        return cls(np.array([numbers.get(word, UNKNOWN) for word in words], np.int64), frequent)


def standard_library() -> list[str]:
    """Return the words of Python's standard library, file by file in alphabetical order."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in files)
    return list(islice((word for text in texts for word in _WORD.findall(text)), _LIBRARY_WORDS))


def words_in(path: Path) -> list[str]:
    """Return a text's words, split at spaces as in Penn Treebank and WikiText; `<eos>` ends each line.

    `path` is the file, or a folder with a file whose name contains `train`. Raises TrainingDataError if the
    file is missing or not UTF-8.
    """
    file = path
    if path.is_dir():
        files = sorted(path.glob("*train*"))
        if not files:
            raise TrainingDataError(f"{path}: has no file named *train*; pass the text file itself")
        file = files[0]
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingDataError(
            f"{file}: {error}; pass a UTF-8 text with words separated by spaces"
        ) from error
    return [word for line in lines for word in (*line.split(), END_OF_LINE)]

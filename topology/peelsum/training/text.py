"""Texts as word numbers: a user's own, or Python's standard library, which is wherever this runs."""

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

from peelsum.training.errors import TrainingDataError

UNKNOWN = 0
END_OF_LINE = "<eos>"
#: Of the standard library's text, in words: enough for a vocabulary of 10,000.
_MOST_WORDS = 600_000
_WORD = re.compile(r"\w+|[^\w\s]|\n")


@dataclass(frozen=True)
class Text:
    """Word numbers int64[n]; `UNKNOWN` for every word that is not in `words`, most frequent first."""

    ids: NDArray[np.int64]
    words: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str], vocabulary: int) -> Text:
        """Number the `vocabulary` - 1 most frequent words from 1."""
        frequent = ("<unk>", *(word for word, _ in Counter(words).most_common(vocabulary - 1)))
        number = {word: i for i, word in enumerate(frequent) if i != UNKNOWN}
        return cls(np.array([number.get(word, UNKNOWN) for word in words], np.int64), frequent)


def standard_library() -> list[str]:
    """The text of Python's standard library, file by file in alphabetical order, cut into words."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in files)
    return list(islice((word for text in texts for word in _WORD.findall(text)), _MOST_WORDS))


def words_in(path: Path) -> list[str]:
    """Words of a text, cut at spaces as Penn Treebank's and WikiText's files are; `<eos>` ends a line.

    `path`: the file, or a folder that holds one whose name has `train` in it. Raises TrainingDataError.
    """
    file = path
    if path.is_dir():
        found = sorted(path.glob("*train*"))
        if not found:
            raise TrainingDataError(f"{path}: holds no file *train*; pass the text file itself")
        file = found[0]
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingDataError(f"{file}: {error}; pass a text in UTF-8, its words cut by spaces") from error
    return [word for line in lines for word in (*line.split(), END_OF_LINE)]

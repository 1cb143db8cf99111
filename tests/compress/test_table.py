"""The table of compressors in the docs agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import peelsum.compress
from peelsum.compress import Compressor, SharedIndex, TensorState

PAGE = Path(__file__).parents[2] / "docs/reference/compressors.md"
TENSOR = np.random.default_rng(0).standard_normal(65536).astype(np.float32)
WORKERS = 4


def rows():
    """The cells of the table's rows."""
    lines = PAGE.read_text().splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("| compressor |")) + 2
    end = lines.index("", begin)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[begin:end]]


def sent_bytes(compressor: Compressor) -> int:
    state, total = TensorState((256, 256), workers=WORKERS, seed=1), 0
    index: SharedIndex | None = compressor.index
    for number in range(compressor.rounds):
        state.round = number
        state.bound = compressor.announced(TENSOR, state)
        if index is not None:
            state.positions = index.decode(index.encode(TENSOR, state), state)
        state.summed = compressor.compress(TENSOR, state)
        total += state.summed.nbytes
    return total


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row(row):
    named, kind, sent, unbiased, _, feedback, in_switch, _ = row
    compressor = eval(named.strip("`"), vars(peelsum.compress))
    assert isinstance(compressor, Compressor)
    assert kind == compressor.kind
    assert sent == f"{sent_bytes(compressor):,}"
    assert unbiased == ("yes" if compressor.unbiased else "no")
    assert feedback == ("yes" if compressor.needs_feedback else "no")
    assert in_switch == {"additive": "yes", "indexed": "yes, by its index", "gather": "no"}[compressor.kind]


def test_every_compressor_has_a_row():
    classes = {
        name
        for name, one in vars(peelsum.compress).items()
        if isinstance(one, type) and issubclass(one, Compressor)
    }
    named = {name for row in rows() for name in re.findall(r"\w+(?=\()", row[0])}
    assert classes - named == {"Compressor", "Sparsifier", "Indexed"}

"""One worker's step through the codec, timed: encode, a sum over this worker alone, decode, and a check.

The check is NumPy's own arithmetic on the tensor. Time between encode and decode is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Choice, Settings
from peelsum.allreduce.exchange import Round, Setting, Sums, TensorExchange
from peelsum.allreduce.summation import Words
from peelsum.bench.lhc import LhcLayout
from peelsum.codec import FixedPoint, Kernels

#: What is measured runs so often, unless it has taken _ENOUGH_S seconds before.
REPEATS = 5
_ENOUGH_S = 2.0
_CHECKED_AT_A_TIME = 2**22


class NotExactError(Exception):
    """What was decoded is not what was encoded. Says which element."""


class Measured(NamedTuple):
    """Words sent, seconds, and what there was to peel.

    candidates: the elements int64[k] that were decoded; `left` of them peeling did not recover.
    """

    words: int
    encode_s: float
    decode_s: float
    candidates: NDArray[np.int64] | None
    left: int

    @property
    def codec_s(self) -> float:
        """Encoding and decoding together."""
        return self.encode_s + self.decode_s


def one_step(
    choice: Choice, values: NDArray[np.float32], settings: Settings, ops: Kernels, lanes: int, seed: int
) -> Measured:
    """All rounds of values[n] sent by `choice`. Raises NotExactError."""
    clock = time.perf_counter
    started = clock()
    exchange = TensorExchange(choice, values, Setting(ops, 1, lanes, settings, seed))
    rounds = exchange.rounds()
    asked: Round | None = next(rounds)
    encode_s, decode_s = clock() - started, 0.0
    words, left, sketched = 0, 0, False
    while asked is not None:
        started = clock()
        ored, added = np.empty(asked.or_words, np.uint32), np.empty(asked.add_words, np.uint32)
        asked.write(ored, added)
        encode_s += clock() - started
        words += ored.size + added.size
        # Whatever is added after the sketch is what peeling left over.
        left += added.size // settings.limbs if sketched else 0
        sketched = sketched or (choice.form == "sketch" and added.size > 0)
        sums = Sums(ored.copy(), added.copy())
        started = clock()
        try:
            asked = rounds.send(sums)
        except StopIteration:
            asked = None
        decode_s += clock() - started
    started = clock()
    decoded = exchange.floats(1)
    decode_s += clock() - started
    _require_exact(values, decoded, exchange.fixed or FixedPoint(0))
    return Measured(words, encode_s, decode_s, exchange.positions, left)


def fastest(run: Callable[[int], Measured]) -> Measured:
    """The fastest of several run(0), run(1), ...: REPEATS, or fewer if they take long."""
    runs: list[Measured] = []
    while len(runs) < REPEATS and sum(one.codec_s for one in runs) < _ENOUGH_S:
        runs.append(run(len(runs)))
    return min(runs, key=lambda one: one.codec_s)


def lhc_step(layout: LhcLayout, values: NDArray[np.float32], fixed: FixedPoint) -> Measured:
    """The same through LHC's layout, which gets `fixed` for nothing.

    Raises NotExactError if all is recovered and differs.
    """
    clock = time.perf_counter
    started = clock()
    index = layout.index(values)
    encode_s = clock() - started
    summed: Words = index.copy()
    started = clock()
    sketch, counts = layout.encode(values, fixed, summed)
    encode_s += clock() - started
    total = sketch.copy()
    started = clock()
    decoded, left = layout.decode(total, counts, summed, fixed, values.size)
    decode_s = clock() - started
    if not left:
        _require_exact(values, decoded, fixed)
    return Measured(layout.words(values.size), encode_s, decode_s, None, left)


def _require_exact(values: NDArray[np.float32], decoded: NDArray[np.float32], fixed: FixedPoint) -> None:
    factor = np.ldexp(1.0, fixed.scale)
    for start in range(0, values.size, _CHECKED_AT_A_TIME):
        part = values[start : start + _CHECKED_AT_A_TIME]
        wanted = (np.rint(part.astype(np.float64) * factor) / factor).astype(np.float32)
        wrong = np.flatnonzero(wanted != decoded[start : start + part.size])
        if wrong.size:
            i = int(wrong[0])
            raise NotExactError(
                f"element {start + i}: {decoded[start + i]} was decoded for {wanted[i]}; this is a fault of "
                "the codec, please report it with the command that you gave"
            )

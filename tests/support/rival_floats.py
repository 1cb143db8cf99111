"""Hosts of SwitchML for float32 and of THC, whose programs are in switch/rivals. No experiment runs them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.program_bench import Message, SlotJob, SlotProtocol, Words
from benchmarks.rivals.slot_protocols import PROGRAMS, PROTOCOLS, PoolWorker
from peelsum.simulation.trains import SimulationError

#: Levels of THC's 4-bit indices, as in switch/rivals/thc.p4, and the workers whose sum of levels has 8 bits.
_LEVELS = np.array([0, 3, 6, 8, 10, 12, 13, 14, 16, 17, 18, 20, 22, 24, 27, 30])
THC_WORKERS = 8


class FloatPoolWorker(PoolWorker):
    """SwitchML's worker for float32 (section 3.7): `words` and `results` are the bits of floats.

    A stream begins with a message that has only the exponent of its first chunk. Each further message has the
    exponent of the next chunk, and its result the largest exponent of all workers, which scales that chunk.
    """

    def __init__(self, job: SlotJob, number: int) -> None:
        super().__init__(job, number)
        self._scales: dict[int, int] = {}

    def scale(self, chunk: int) -> int:
        """Return the biased exponent of a chunk's largest value."""
        return int((self.words[chunk] >> 23 & 0xFF).max())

    def encode(self, chunk: int, scale: int) -> Words:
        """Return the lanes of a chunk, scaled by the largest exponent of all workers."""
        values = self.words[chunk].view(np.float32).astype(np.float64)
        scaled = np.rint(values * float_factor(scale, self.job.workers))
        lanes: Words = scaled.astype(np.int32).view(np.uint32)
        return lanes

    def decode(self, lanes: Words, scale: int) -> NDArray[np.float64]:
        """Return the sums of a chunk's values."""
        return lanes.view(np.int32) / float_factor(scale, self.job.workers)

    def first(self, stream: int) -> Message:
        """Return the message with the first chunk's exponent, and zeros."""
        return Message(stream, np.zeros(self.job.lanes, np.uint32), self.scale(stream))

    def take(self, result: Message) -> Message | None:
        """Convert a chunk's sum to floats; encode the next chunk by the exponent that came with it."""
        chunk, following = result.chunk, result.chunk
        if result.slot in self._scales:
            sums = self.decode(result.words, self._scales[result.slot])
            self.results[chunk] = sums.astype(np.float32).view(np.uint32)
            following += self.streams
        if following >= self.job.chunks:
            return None
        self._scales[result.slot] = result.extra
        after = following + self.streams
        next_scale = self.scale(after) if after < self.job.chunks else 0
        return Message(following, self.encode(following, result.extra), next_scale)


def float_factor(exponent: int, workers: int) -> float:
    """Return the factor by which values below 2**(exponent - 126) become integers whose sum has 32 bits.

    Rounding changes a sum by at most workers / factor.
    """
    return (2.0**31 - workers) / (workers * 2.0 ** (exponent - 126))


class ThcWorker(FloatPoolWorker):
    """THC's worker: it sends indices of levels between the chunk's range and its negative.

    A value between two levels becomes one of them at random, so that its mean is the value. Left out: the
    rotation of the vector before, and error feedback after.
    """

    def __init__(self, job: SlotJob, number: int) -> None:
        if job.workers > THC_WORKERS:
            raise SimulationError(
                f"workers: {job.workers}: THC's 8-bit sums are for up to {THC_WORKERS}; use fewer"
            )
        super().__init__(job, number)
        self._random = np.random.default_rng([job.number, number])

    def scale(self, chunk: int) -> int:
        """Return the largest absolute value, as the bits of a float."""
        return int((self.words[chunk] & 0x7FFFFFFF).max())

    def encode(self, chunk: int, scale: int) -> Words:
        """Return 8 indices in each lane."""
        most = _float(scale) or 1.0  # if all values are zero, so are their sums, whatever is sent
        values = self.words[chunk].view(np.float32).astype(np.float64)
        positions = (values + most) / (2 * most) * _LEVELS[-1]
        above = np.clip(np.searchsorted(_LEVELS, positions), 1, len(_LEVELS) - 1)
        share = (positions - _LEVELS[above - 1]) / (_LEVELS[above] - _LEVELS[above - 1])
        indices = above - (self._random.random(len(share)) >= share)
        lanes: Words = (indices.reshape(-1, 8) << np.arange(28, -1, -4)).sum(1).astype(np.uint32)
        return lanes

    def decode(self, lanes: Words, scale: int) -> NDArray[np.float64]:
        """Return the sums that the sums of levels stand for."""
        sums = lanes.astype(">u4").view(np.uint8).reshape(2, -1, 4).transpose(1, 0, 2).reshape(-1)
        values: NDArray[np.float64] = (sums * (2 / _LEVELS[-1]) - self.job.workers) * _float(scale)
        return values


def _float(bits: int) -> float:
    """Return the float32 with these bits."""
    return float(np.uint32(bits).view(np.float32))


def switchml_bound(words: Words) -> float:
    """Return how far SwitchML's sums of a chunk may be off, given all workers' words."""
    return len(words) / float_factor(int((words >> 23 & 0xFF).max()), len(words))


def thc_bound(words: Words) -> float:
    """Return how far THC's sums of a chunk may be off: by the widest gap between levels for each worker."""
    widest = np.diff(_LEVELS).max() / _LEVELS[-1]
    return float(len(words) * widest * 2 * _float(int((words & 0x7FFFFFFF).max())))


def wrong_floats(words: Words, results: Words, bound: Callable[[Words], float]) -> int:
    """Return the number of chunks of which a sum is off by more than a bound, and float32's rounding."""
    sums = words.view(np.float32).astype(np.float64).sum(0)
    bounds = np.array([bound(words[:, chunk]) for chunk in range(len(sums))])
    allowed = bounds[:, np.newaxis] + np.abs(sums) * 2.0**-24
    return int((~(np.abs(results.view(np.float32) - sums) <= allowed)).any(1).sum())


#: SwitchML for float32, with exponents one chunk ahead.
SWITCHML_FLOATS = replace(
    PROTOCOLS["switchml"], worker=FloatPoolWorker, wrong=partial(wrong_floats, bound=switchml_bound)
)
#: Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression" (NSDI'24).
#: Loss and ranges are handled as in SwitchML. Sums are approximate.
THC = SlotProtocol(PROGRAMS / "thc.json", ThcWorker, None, partial(wrong_floats, bound=thc_bound), 8, 2)

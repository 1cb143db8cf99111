"""Estimate the words and the time of each choice of form and index, by formula, from an estimated union."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from numbers import Real

from peelsum.allreduce.errors import InvalidRequestError
from peelsum.allreduce.indexes import BitmapIndex, BlockIndex, BloomIndex, Index, UnionCounts
from peelsum.allreduce.plan import FORMS, Choice, Form, PlanSettings
from peelsum.codec import BLOCK_SIZES, MIN_CELLS_PER_CANDIDATE, ROW, BloomLayout, SketchLayout, enough_cells
from peelsum.codec.layout import WORD_BITS

#: Elements of the largest block of scales: a large tensor is cut into pieces of whole blocks.
_LARGEST_BLOCK = 2**15
#: Least number of other words that a tensor has for each word that agrees on the scale of a block.
_WORDS_PER_SCALE = 32
#: Bits per candidate for which a Bloom filter halves its false positives: one more sub-table.
_BLOOM_BITS = 1 / math.log(2)
#: Blocks of 2**5 elements are the words of a bitmap.
_WORD_LEVEL = 5

#: A worker sends up to this share of the non-zeros' words more, rather than another exchange.
TOLERANCE = 0.25

# Nanoseconds of work that `CodecModel` has no field for; they are scaled with its `sparse`.
_BLOCK_NS = 13.0  # per word of a bitmap: blocks smaller than a word
_WORD_NS = 3.0  # per word of a bitmap: larger blocks
_REFINE_NS = 7.0  # per word of a bitmap that holds candidates
_PROBE_NS = 0.65  # per word of a bitmap and sub-table of a Bloom filter

# Kernel calls per tensor; several short ones count as one.
_DENSE_CALLS, _SPARSE_CALLS = 2, 5
_INDEX_CALLS, _REFINE_CALLS, SKETCH_CALLS = 2, 1, 3  # in addition, e.g. for an index other than a bitmap


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


@dataclass(frozen=True)
class CodecModel:
    """A model of the time of encoding and decoding together, in nanoseconds, with results in new memory.

    The defaults are of a shared 2-core machine, as `peelsum plan --check` measured them from 2**10 to 2**24
    elements (docs/results/codec.md). Raises InvalidRequestError for a number that is negative or not
    finite.
    """

    call: float = 5000.0
    """Per kernel call, even without elements."""
    dense: float = 0.65
    """Per element of a dense tensor: quantize, dequantize."""
    sparse: float = 0.4
    """Per element of a sparse tensor: index, zeros. Passes over other indexes take as much more or less."""
    compact: float = 3.0
    """Per candidate: positions, quantize, dequantize."""
    cell: float = 24.0
    """Per cell of a sketch: add, peel."""
    one_round: float = 0.6
    """Per element of a one-round step, in addition (docs/results/experiments/which_form)."""
    one_round_step: float = 4e5
    """Per one-round step, in addition."""

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            if not _is_number(number) or not 0 <= number < math.inf:
                raise InvalidRequestError(f"{name}: {number!r} is not a time; use 0 or more nanoseconds")


_CODEC = CodecModel()


@dataclass(frozen=True)
class NetworkModel:
    """A model of the time that a worker's words take in the network.

    Through a switch, a worker sends and receives the same words for any number of workers; `ring` models a
    backend that sends more. The default is about the speed of the softswitch on a shared 2-core machine. With
    a very small `gbps`, the choice with the fewest words is the cheapest. Raises InvalidRequestError for a
    rate that is not positive and finite, or a time that is negative or infinite.
    """

    gbps: float = 1.0
    """Gigabits of words per second that a worker sends."""
    round_trip_s: float = 3e-3
    """Seconds that every exchange takes in addition, however short."""
    codec: CodecModel = CodecModel()
    """What encoding and decoding take."""

    def __post_init__(self) -> None:
        if not _is_number(self.gbps) or not 0 < self.gbps < math.inf:
            raise InvalidRequestError(f"gbps: {self.gbps!r} is not a rate; use a finite number above 0")
        if not _is_number(self.round_trip_s) or not 0 <= self.round_trip_s < math.inf:
            raise InvalidRequestError(
                f"round_trip_s: {self.round_trip_s!r} is not a time; use 0 or more seconds"
            )

    @classmethod
    def ring(cls, workers: int, gbps: float, hop_s: float) -> NetworkModel:
        """Return the model of a ring all_reduce, such as gloo's, over `workers` workers.

        Each of n workers sends 2 (n - 1) / n times its words at `gbps`, in 2 (n - 1) steps that take `hop_s`
        more each. Raises InvalidRequestError for fewer than 2 workers.
        """
        if workers < 2:
            raise InvalidRequestError(f"workers: {workers} are too few for a ring; use 2 or more")
        steps = 2 * (workers - 1)
        return cls(gbps * workers / steps, steps * hop_s)

    @property
    def prices(self) -> tuple[float, float]:
        """How many words take as long as an exchange, and as a candidate's cells in the codec."""
        words_per_s = self.gbps * 1e9 / WORD_BITS
        return self.round_trip_s * words_per_s, MIN_CELLS_PER_CANDIDATE * self.codec.cell * 1e-9 * words_per_s

    def seconds(self, words: float, exchanges: int) -> float:
        """Return the seconds that it takes to send `words` 32-bit words in `exchanges` exchanges."""
        return words * WORD_BITS / (self.gbps * 1e9) + exchanges * self.round_trip_s


@dataclass(frozen=True)
class CostEstimate:
    """A choice of form and index for a tensor, and its estimated costs for a worker."""

    choice: Choice
    words: float
    """32-bit words that the worker sends."""
    exchanges: int
    """Number of exchanges, one after the other."""
    codec_s: float
    """Seconds in the codec."""
    one_round: bool = False
    """Whether the step is done in one round."""

    def seconds(self, network: NetworkModel) -> float:
        """Return the estimated seconds of a step that sums no other tensor."""
        return (
            network.seconds(self.words, self.exchanges)
            + self.codec_s
            + 1e-9 * network.codec.one_round_step * self.one_round
        )


def scale_block(elements: int, words: float) -> int:
    """Choose the size of the blocks that have a scale each, of a tensor that sends `words` other words.

    Return a block's number of elements, at least 32. The blocks' own words are at most one in 33, unless the
    blocks are of the largest size.
    """
    per_block = max(_WORDS_PER_SCALE * elements / max(words, 1.0), 1.0)
    return min(max(1 << math.ceil(math.log2(per_block)), ROW), _LARGEST_BLOCK)


def cost_estimates(
    elements: int,
    seen: UnionCounts,
    settings: PlanSettings,
    forms: Collection[Form] = FORMS,
    *,
    one_round: bool = False,
    codec: CodecModel = _CODEC,
) -> Iterator[CostEstimate]:
    """Yield every combination of one of `forms` and an index, with the best parameters for each.

    one_round: whether the step is done in one round. It then has no refined index and no "compact" values.
    """
    for form in forms:
        if form == "dense":
            work_ns = codec.call * _DENSE_CALLS + codec.dense * elements
            yield _with_scales(Choice(form), elements, elements, work_ns, codec, one_round)
        elif form == "sketch" or not one_round:
            per_candidate = 1.0
            if form == "sketch":
                per_candidate = settings.cells_per_candidate or enough_cells(seen.non_zeros)
            for index in indexes(elements, seen, per_candidate):
                if one_round and index.refined:
                    continue
                words, passed = expected(index, elements, seen)
                work_ns = codec.call * _SPARSE_CALLS + codec.sparse * elements + codec.compact * passed
                work_ns += index_ns(index, elements, seen, codec)
                values = passed * per_candidate
                if form == "sketch":
                    values = values if SketchLayout.holds(passed, per_candidate) else math.inf
                    work_ns += codec.call * SKETCH_CALLS + codec.cell * values
                yield _with_scales(Choice(form, index), elements, words + values, work_ns, codec, one_round)


def _with_scales(
    choice: Choice, elements: int, words: float, work_ns: float, codec: CodecModel, one_round: bool
) -> CostEstimate:
    """Return the CostEstimate of a choice that sends `words` words besides those that agree on scales."""
    block = scale_block(elements, words)
    scales, refined = 1 + -(-elements // block), choice.index is not None and choice.index.refined
    exchanges = 1 if one_round else 2 + refined
    work_ns += codec.one_round * elements if one_round else 0.0
    return CostEstimate(
        replace(choice, scale_block=block), words + scales, exchanges, work_ns * 1e-9, one_round
    )


def index_ns(index: Index, elements: int, seen: UnionCounts, codec: CodecModel = _CODEC) -> float:
    """Return the nanoseconds that a worker spends on an index beyond its bitmap, encoding and decoding."""
    if isinstance(index, BitmapIndex):
        return 0.0
    words, passed = elements / WORD_BITS, index.passed(elements, seen)
    if isinstance(index, BlockIndex):
        passes_ns = (_BLOCK_NS if index.block < WORD_BITS else _WORD_NS) * words
        used_words = max(seen.occupied[_WORD_LEVEL], passed / WORD_BITS)
    else:
        passes_ns = _PROBE_NS * index.hashes * (words + seen.occupied[_WORD_LEVEL])
        used_words = words * (1 - (1 - min(passed / max(elements, 1), 1.0)) ** WORD_BITS)
    passes_ns += _REFINE_NS * used_words * index.refined
    calls_ns = codec.call * (_INDEX_CALLS + _REFINE_CALLS * index.refined)
    return calls_ns + passes_ns * codec.sparse / _CODEC.sparse  # from the machine of the defaults


def expected(index: Index, elements: int, seen: UnionCounts) -> tuple[float, float]:
    """Return the estimated words of an index in all its exchanges, and the candidates that pass it."""
    words, passed = index.words(elements), index.passed(elements, seen)
    return (words + passed / WORD_BITS, seen.non_zeros) if index.refined else (words, passed)


def indexes(elements: int, seen: UnionCounts, words_per_candidate: float) -> Iterator[Index]:
    """Yield the best index of each form, if a candidate's value takes `words_per_candidate` words.

    An unrefined index that too many zeros pass is left out: it would be refined after all.
    """

    def words(index: Index) -> float:  # of the index, and of the values of all that pass it
        index_words, passed = expected(index, elements, seen)
        return index_words + passed * words_per_candidate

    yield BitmapIndex()
    for refined in (False, True):
        for levels in (range(1, _WORD_LEVEL), range(_WORD_LEVEL, BLOCK_SIZES)):
            blocks = (BlockIndex(2**b, refined) for b in levels)
            suitable = [index for index in blocks if refined or _few_zeros_pass(index, elements, seen)]
            if suitable:
                yield min(suitable, key=words)
        wasted_bits = 1.0 if refined else WORD_BITS * words_per_candidate
        bloom = best_bloom(elements, seen.non_zeros, wasted_bits, refined=refined)
        if refined or _few_zeros_pass(bloom, elements, seen):
            yield bloom


def _few_zeros_pass(index: Index, elements: int, seen: UnionCounts) -> bool:
    """Return whether an index need not be refined, because few of its candidates are zeros."""
    return not refining_pays(expected(index, elements, seen)[1], seen.non_zeros)


def refining_pays(candidates: float, non_zeros: float) -> bool:
    """Return whether refining an index saves words: a bit for each candidate, instead of zeros as values."""
    return candidates > (1 + TOLERANCE) * non_zeros + candidates / WORD_BITS


def best_bloom(elements: int, non_zeros: float, wasted_bits: float, *, refined: bool) -> BloomIndex:
    """Return the Bloom filter with the fewest bits in total: its own, and `wasted_bits` per false positive.

    Each additional sub-table costs _BLOOM_BITS per candidate and halves the false positives.
    """
    non_zeros = max(non_zeros, 1.0)
    ratio = wasted_bits * max(elements - non_zeros, 1.0) * math.log(2) / (non_zeros * _BLOOM_BITS)
    hashes = min(max(round(math.log2(max(ratio, 1.0))), 1), 32)
    return BloomIndex(hashes, BloomLayout.sized(math.ceil(non_zeros), hashes, 0).rows, refined)


def lower_bound_bits(elements: int, count: float) -> float:
    """Return the fewest bits that can encode `count` 32-bit values anywhere among `elements`.

    They are 32 bits for each value, and the entropy of the positions.
    """
    if not 0 < count < elements:
        return WORD_BITS * count
    share = count / elements
    entropy = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    return elements * (WORD_BITS * share + entropy)

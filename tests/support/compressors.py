"""One of every compressor, one worker's compression without others, and workers as threads."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from operator import add

import numpy as np

from peelsum.allreduce import Allreduce, LocalSummation
from peelsum.compress import (
    DGC,
    QSGD,
    CompressedSum,
    Half,
    Int8Blocks,
    Memory,
    PackedIntegers,
    PowerSGD,
    RandomK,
    Residual,
    Single,
    StarTopK,
    SummationCollectives,
    TensorState,
    TernGrad,
    Threshold,
    TopK,
    VarTopK,
    registered,
)
from peelsum.compress.arithmetic import from_code, to_code
from peelsum.compress.sparsifier import Elected

#: The compressors of the package, without those that tests declare.
KINDS = {name: kind for name, kind in registered().items() if kind.__module__.startswith("peelsum.")}
#: Every compressor with its defaults, and variants that send more of small tensors.
COMPRESSORS = {name: kind() for name, kind in KINDS.items()} | {
    "top-k": TopK(0.1),
    "top-k per bucket": TopK(0.1, per="bucket"),
    "top-k, momentum": TopK(0.1, momentum=0.9),
    "sampled top-k": TopK(0.1, sample=0.3),
    "sampled top-k, warm-up, momentum": TopK(0.05, sample=0.5, warm_up_steps=3, momentum=0.5),
    "random-k": RandomK(0.1),
    "random-k, own seeds": RandomK(0.1, seeds="own"),
    "threshold": Threshold(0.5),
    "dgc": DGC(0.05, warm_up_steps=3),
    "star": StarTopK(0.1),
    "star per bucket, bitmap": StarTopK(0.5, per="bucket"),
    "var": VarTopK(0.1),
    "var, list": VarTopK(0.01),
    "qsgd, largest": QSGD(2, "largest", None),
    "int8": Int8Blocks(64),
    "4 bits": PackedIntegers(4),
    "8 bits, rotated": PackedIntegers(8, rotate=True),
    "16 bits per bucket": PackedIntegers(16, per="bucket"),
    "power per bucket": PowerSGD(1, per="bucket"),
    "top-k, qsgd": TopK(0.1, quantizer=QSGD(4)),
    "random-k, 8 bits rotated": RandomK(0.1, quantizer=PackedIntegers(8, rotate=True)),
    "top-k, as they are": TopK(0.1, quantizer=Single()),
    "star, 8 bits": StarTopK(0.1, quantizer=PackedIntegers(8)),
    "var per bucket, terngrad": VarTopK(0.1, per="bucket", quantizer=TernGrad()),
    "threshold, half": Threshold(0.5, quantizer=Half()),
}


def alone(compressor, tensor, **fields):
    """Return a payload's values and the state, of one worker alone or with `fields` of the state.

    `state.scratch["bytes"]` are those of its payloads.
    """
    state = TensorState(tensor.shape, **fields)
    flat, size = tensor.reshape(-1), 0
    for number in range(compressor.rounds):
        state.round = number
        if compressor.kind == "additive":
            state.bound = from_code(to_code(compressor.announced(flat, state)))
        if isinstance(compressor, Elected):
            state.positions = compressor.decode(compressor.encode(flat, state), state)
        if compressor.kind == "additive" and not state.bound:
            return np.zeros(flat.size), state
        state.summed = compressor.compress(flat, state)
        size += state.summed.nbytes
    if compressor.kind == "indexed":
        size += 4 * state.positions.size
    state.scratch["bytes"] = size
    return compressor.decompress(state.summed, state), state


def fractions(sent, elements):
    """Return the part of each element that a worker sent."""
    return [Fraction(units, 2**256) for units in sent_in_units(sent, elements)]


def exactly(numbers, scales):
    """Return numbers / 2**scales."""
    return [Fraction(units, 2**256) for units in in_units(numbers, scales)]


def grown(before, gradient, momentum):
    """Return a residual with one more gradient added."""
    more = Residual.empty(gradient.size, velocity=bool(momentum))
    more.set_sum(before, gradient, momentum)
    return more


def kept(residual):
    """Return what a residual keeps, in float64."""
    return np.ldexp(residual.numbers.astype(float), -residual.scales.astype(np.int32))


def in_units(numbers, scales):
    """Return numbers / 2**scales in units of 2**-256, which are integers, and far quicker than fractions."""
    return [number << 256 - scale for number, scale in zip(numbers.tolist(), scales.tolist(), strict=True)]


def floats_in_units(values):
    """Return finite float32 in units of 2**-256."""
    mantissas, exponents = np.frexp(values)
    return in_units((mantissas * 2.0**24).astype(np.int64), 24 - exponents)


def sent_in_units(sent, elements):
    """Return the part of each element that a worker sent, in units of 2**-256."""
    out = [0] * elements
    for at, value in zip(sent.positions.tolist(), in_units(sent.numbers, sent.scales), strict=True):
        out[at] = value
    return out


class Books(Memory):
    """A memory that keeps books of what went into its residuals and what was sent, in units of 2**-256."""

    def __init__(self):
        super().__init__()
        self.accumulated = {}
        self.sent = {}

    def add_gradients(self, gradients, momentum=0.0, max_norm=None):
        """Enter what is added: the gradient, or the velocity."""
        grown = super().add_gradients(gradients, momentum, max_norm)
        for name, residual in grown.items():
            if residual.velocity is not None:
                fresh = in_units(residual.velocity, residual.scales)
            else:
                fresh = floats_in_units(gradients[name])
            self._enter(self.accumulated, name, fresh)
        return grown

    def store(self, grown, sent, step):
        """Enter what was sent."""
        super().store(grown, sent, step)
        for name, residual in grown.items():
            one = sent_in_units(sent[name], len(residual.numbers)) if sent[name] else []
            self._enter(self.sent, name, one)

    @staticmethod
    def _enter(book, name, more):
        book[name] = list(map(add, book.get(name, [0] * len(more)), more))

    def balance(self):
        """All that was sent and what is kept must come to all that was entered."""
        for name, residual in self.residuals.items():
            kept_now = in_units(residual.numbers, residual.scales)
            assert list(map(add, self.sent[name], kept_now)) == self.accumulated[name], name


class Recorded(SummationCollectives):
    """Collectives that note the operations and lengths of every exchange."""

    def __init__(self, summation):
        super().__init__(summation)
        self.exchanges = []

    def sum_words(self, parts):
        """Note the parts, and sum them."""
        self.exchanges.append([(part.op, part.words.size) for part in parts])
        return super().sum_words(parts)


class Workers:
    """A group of workers that sum compressed tensors, a thread each, and keep books.

    `allreduce` are options of the all-reduce of indexed payloads, the others those of `CompressedSum`. Books
    take most of a step's time; `kind` is Memory in tests that do not balance them.
    """

    def __init__(self, compressor, count=3, *, kind=Books, allreduce=None, **options):
        self.summations = LocalSummation.group(count, 8)
        options = {"error_feedback": True} | options
        self.sums = []
        for one in self.summations:
            summing = None if allreduce is None else Allreduce(one, average=True, **allreduce)
            self.sums.append(CompressedSum(one, compressor, kind(), allreduce=summing, **options))

    def step(self, tensors, step=None):
        """Every worker's result of one step, or of one bucket of step `step`; the first error is raised."""
        with ThreadPoolExecutor(len(self.sums)) as pool:
            pairs = zip(self.sums, tensors, strict=True)
            return list(pool.map(lambda pair: pair[0].sum(pair[1], step), pairs))

    def recorded(self, tensors):
        """Every worker's exchanges of one step: the operation and length of each part."""
        collectives = [Recorded(one) for one in self.summations]
        for one, recorded in zip(self.sums, collectives, strict=True):
            one._collectives = one.allreduce._summation = recorded
        self.step(tensors)
        return [one.exchanges for one in collectives]

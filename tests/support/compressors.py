"""One of every compressor, one worker's compression without others, and workers as threads."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np

from peelsum.allreduce import Allreduce, LocalSummation
from peelsum.compress import (
    DGC,
    QSGD,
    Brain,
    Combined,
    CompressedSum,
    Compressor,
    Dense,
    EFSignSGD,
    Exact,
    Half,
    Int8Blocks,
    Memory,
    NaturalCompression,
    PackedIntegers,
    PowerSGD,
    RandomK,
    Residual,
    SignSGD,
    Single,
    StarTopK,
    TensorState,
    TernGrad,
    Threshold,
    TopK,
    VarTopK,
)

COMPRESSORS: dict[str, Compressor] = {
    "top-k": TopK(0.1),
    "top-k per bucket": TopK(0.1, per="bucket"),
    "sampled top-k": TopK(0.1, sample=0.3),
    "random-k": RandomK(0.1),
    "random-k, own seeds": RandomK(0.1, seeds="own"),
    "threshold": Threshold(0.5),
    "dgc": DGC(0.05, warm_up_steps=3),
    "star": StarTopK(0.1),
    "star per bucket, bitmap": StarTopK(0.5, per="bucket"),
    "var": VarTopK(0.1),
    "var, list": VarTopK(0.01),
    "qsgd": QSGD(4),
    "qsgd, largest": QSGD(2, "largest", None),
    "terngrad": TernGrad(),
    "sign": SignSGD(),
    "ef-sign": EFSignSGD(),
    "half": Half(),
    "brain": Brain(),
    "int8 blocks": Int8Blocks(64),
    "natural": NaturalCompression(),
    "4 bits": PackedIntegers(4),
    "8 bits, rotated": PackedIntegers(8, rotate=True),
    "16 bits per bucket": PackedIntegers(16, per="bucket"),
    "power": PowerSGD(2),
    "power per bucket": PowerSGD(1, per="bucket"),
    "top-k, qsgd": Combined(TopK(0.1), QSGD(4)),
    "random-k, 8 bits rotated": Combined(RandomK(0.1), PackedIntegers(8, rotate=True)),
    "top-k, as they are": Combined(TopK(0.1), Single()),
    "dense": Dense(),
    "star, 8 bits": Combined(StarTopK(0.1), PackedIntegers(8)),
    "var per bucket, terngrad": Combined(VarTopK(0.1, per="bucket"), TernGrad()),
    "threshold, half": Combined(Threshold(0.5), Half()),
}


def alone(compressor: Compressor, tensor: np.ndarray, **fields: Any) -> tuple[np.ndarray, TensorState]:
    """Return a payload's values and the state, of one worker alone or with `fields` of the state."""
    state = TensorState(tensor.shape, **fields)
    flat = tensor.reshape(-1)
    for number in range(compressor.rounds):
        state.round = number
        state.bound = fields.get("bound", compressor.announced(flat, state))
        if compressor.index is not None:
            state.positions = compressor.index.decode(compressor.index.encode(flat, state), state)
        if compressor.kind == "additive" and not state.bound:
            return np.zeros(flat.size), state
        payload = compressor.compress(flat, state)
        state.summed = payload
    return compressor.decompress(payload, state), state


def fractions(sent: Exact, elements: int) -> list[Fraction]:
    """Return the part of each element that a worker sent."""
    out = [Fraction(0)] * elements
    for at, value in zip(sent.positions.tolist(), exactly(sent.numbers, sent.scales), strict=True):
        out[at] = value
    return out


def exactly(numbers: np.ndarray, scales: np.ndarray) -> list[Fraction]:
    """Return numbers / 2**scales."""
    pairs = zip(numbers.tolist(), scales.tolist(), strict=True)
    return [Fraction(number) / Fraction(2) ** scale for number, scale in pairs]


def kept(residual: Residual) -> np.ndarray:
    """Return what a residual keeps, in float64."""
    return np.ldexp(residual.numbers.astype(float), -residual.scales.astype(np.int32))


class Books(Memory):
    """A memory that keeps books, in fractions, of what went into its residuals and what was sent."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.accumulated: dict[str, list[Fraction]] = {}
        self.sent: dict[str, list[Fraction]] = {}

    def grown(self, gradients: Any, workers: int) -> Any:
        """Enter what is added: the gradient, or the velocity."""
        grown = super().grown(gradients, workers)
        for name, residual in grown.items():
            if residual.velocity is not None:
                fresh = exactly(residual.velocity, residual.scales)
            else:
                fresh = [Fraction(float(one)) for one in gradients[name]]
            before = self.accumulated.get(name, [Fraction(0)] * len(fresh))
            self.accumulated[name] = [a + b for a, b in zip(before, fresh, strict=True)]
        return grown

    def keep(self, grown: Any, sent: Any, step: int) -> None:
        """Enter what was sent."""
        super().keep(grown, sent, step)
        for name, residual in grown.items():
            one = fractions(sent[name], len(residual.numbers)) if sent[name] else []
            before = self.sent.get(name, [Fraction(0)] * len(one))
            self.sent[name] = [a + b for a, b in zip(before, one, strict=False)]

    def balance(self) -> None:
        """All that was sent and what is kept must come to all that was entered."""
        for name, residual in self.residuals.items():
            pairs = zip(self.sent[name], exactly(residual.numbers, residual.scales), strict=True)
            assert [a + b for a, b in pairs] == self.accumulated[name], name


class Workers:
    """A group of workers that sum compressed tensors, a thread each, and keep books.

    `allreduce` are options of the all-reduce of indexed payloads, the others those of `CompressedSum`. Books
    take most of a step's time; `kind` is Memory in tests that do not balance them.
    """

    def __init__(
        self,
        compressor: Compressor,
        count: int = 3,
        *,
        kind: type[Memory] = Books,
        memory: Mapping[str, Any] | None = None,
        allreduce: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.summations = LocalSummation.group(count, 8)
        options = {"joined": allreduce is None} | options
        self.sums = [
            CompressedSum(
                one,
                compressor,
                kind(**memory or {}),
                allreduce=None if allreduce is None else Allreduce(one, average=True, **allreduce),
                **options,
            )
            for one in self.summations
        ]

    def step(self, tensors: list[dict[str, np.ndarray]]) -> list[Any]:
        """Every worker's result of one step; the first error is raised."""
        with ThreadPoolExecutor(len(self.sums)) as pool:
            return list(pool.map(lambda pair: pair[0].sum(pair[1]), zip(self.sums, tensors, strict=True)))

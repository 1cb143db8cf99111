"""Compression methods by name: a compressor with its parameter, error feedback, momentum and scope.

A method is written NAME[:PARAMETER][/FLAG]..., for example "top-k:0.01/no-feedback".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peelsum.compress import (
    DGC,
    QSGD,
    Brain,
    Combined,
    CompressError,
    Compressor,
    EFSignSGD,
    Half,
    Int8Blocks,
    NaturalCompression,
    PackedIntegers,
    PowerSGD,
    RandomK,
    SignSGD,
    StarTopK,
    TernGrad,
    Threshold,
    TopK,
    VarTopK,
)
from peelsum.compress.compressor import Scope

DENSE, EXACT = "dense", "exact"
#: Momentum of the flag, and of SGD without it.
MOMENTUM = 0.9
FLAGS = ("no-feedback", "feedback", "momentum", "bucket")
#: The share of training over which DGC warms up.
_WARM_UP = 0.25


class MethodError(ValueError):
    """A method that does not exist. The message names field, value and remedy in one line."""


@dataclass(frozen=True)
class Method:
    """How gradients are summed."""

    name: str
    """The method as it was written."""
    compressor: Compressor | None
    """None sums all elements by the exact all-reduce."""
    dense: bool = False
    """Whether that all-reduce sends zeros, too."""
    feedback: bool | None = None
    """Error feedback; None is what the compressor needs."""
    momentum: float = 0.0
    """Momentum of error feedback, which the optimizer then lacks."""


@dataclass(frozen=True)
class _Kind:
    """A compressor's constructor, called with parameter, scope and number of steps."""

    make: Callable[[Any, Scope, int], Compressor]
    default: float | None = None
    """The parameter; None if there is none."""
    whole: bool = False
    """Whether the parameter is an integer."""


_KINDS: dict[str, _Kind] = {
    "top-k": _Kind(lambda p, per, _: TopK(p, per=per), 0.01),
    "random-k": _Kind(lambda p, per, _: RandomK(p, per=per), 0.01),
    "threshold": _Kind(lambda p, per, _: Threshold(p, per=per), 0.01),
    "dgc": _Kind(lambda p, per, steps: DGC(p, per=per, warm_up_steps=round(_WARM_UP * steps)), 0.01),
    "star": _Kind(lambda p, per, _: StarTopK(p, per=per), 0.01),
    "var": _Kind(lambda p, per, _: VarTopK(p, per=per), 0.01),
    "qsgd": _Kind(lambda p, per, _: QSGD(p, per=per), 4, whole=True),
    "terngrad": _Kind(lambda _, per, __: TernGrad(per=per)),
    "signsgd": _Kind(lambda _, per, __: SignSGD(per=per)),
    "ef-sign": _Kind(lambda _, per, __: EFSignSGD(per=per)),
    "fp16": _Kind(lambda _, per, __: Half(per=per)),
    "bf16": _Kind(lambda _, per, __: Brain(per=per)),
    "int8": _Kind(lambda _, per, __: Int8Blocks(per=per)),
    "natural": _Kind(lambda _, per, __: NaturalCompression(per=per)),
    "packed": _Kind(lambda p, per, _: PackedIntegers(p, per=per), 8, whole=True),
    "power": _Kind(lambda p, per, _: PowerSGD(p, per=per), 2, whole=True),
    "top-k+qsgd": _Kind(lambda p, per, _: Combined(TopK(p, per=per), QSGD(4)), 0.01),
    "star+packed": _Kind(lambda p, per, _: Combined(StarTopK(p, per=per), PackedIntegers(8)), 0.01),
}
METHODS = (DENSE, EXACT, *_KINDS)


def parse(text: str, steps: int) -> Method:
    """Return the method of `text`, for `steps` steps of training. Raises MethodError if there is none."""
    head, *flags = text.split("/")
    name, colon, parameter = head.partition(":")
    if name not in METHODS:
        raise MethodError(f"compressor: {name!r} is unknown; use one of {', '.join(METHODS)}")
    for flag in flags:
        if flag not in FLAGS:
            raise MethodError(f"compressor: {flag!r} of {text!r} is unknown; use {', '.join(FLAGS)}")
    if name not in _KINDS:
        if colon or flags:
            raise MethodError(f"compressor: {text!r} has a parameter or flag; write {name} alone")
        return Method(name, None, dense=name == DENSE)
    if "momentum" in flags and "no-feedback" in flags:
        raise MethodError(f"compressor: {text!r} has momentum without feedback; leave one out")
    kind = _KINDS[name]
    per: Scope = "bucket" if "bucket" in flags else "tensor"
    try:
        compressor = kind.make(_parameter(text, kind, parameter, given=bool(colon)), per, steps)
    except CompressError as error:
        raise MethodError(f"compressor: {text!r}: {error}") from error
    feedback = False if "no-feedback" in flags else True if {"feedback", "momentum"} & {*flags} else None
    return Method(text, compressor, False, feedback, MOMENTUM if "momentum" in flags else 0.0)


def _parameter(text: str, kind: _Kind, parameter: str, *, given: bool) -> float | None:
    if not given:
        return kind.default
    if kind.default is None:
        raise MethodError(f"compressor: {text!r} takes no parameter; leave out ':{parameter}'")
    try:
        return int(parameter) if kind.whole else float(parameter)
    except ValueError:
        what = "an integer" if kind.whole else "a number"
        raise MethodError(f"compressor: {parameter!r} of {text!r} is not {what}; write {what}") from None

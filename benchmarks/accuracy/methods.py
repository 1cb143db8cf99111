"""Compression methods by name: a compressor with its arguments, and error feedback.

A method is written NAME[+QUANTIZER][:ARGUMENT]...[/FLAG]..., for example "top-k:0.01/no-feedback" or
"top-k+qsgd:0.01:bits=8". Names and arguments are those that compressors declare. An ARGUMENT is a value, of
the first argument, or FIELD=VALUE; a field that the compressor lacks is the quantizer's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from peelsum.compress import CompressError, Compressor, Sparsifier, registered

DENSE, EXACT = "dense", "exact"
METHODS = (DENSE, EXACT, *registered())
#: Momentum of the flag, and of SGD without it.
MOMENTUM = 0.9
#: Flags, with the arguments for which they stand.
FLAGS = {
    "no-feedback": {},
    "feedback": {},
    "momentum": {"momentum": str(MOMENTUM)},
    "bucket": {"per": "bucket"},
}
#: The share of training over which a compressor warms up that does so by default.
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

    @property
    def momentum(self) -> float:
        """Momentum of error feedback, which the optimizer then lacks."""
        return 0.0 if self.compressor is None else self.compressor.momentum


def parse(text: str, steps: int, seed: int = 0) -> Method:
    """Return the method of `text`, for `steps` steps of training. Raises MethodError if there is none.

    `seed` is that of a compressor that is random.
    """
    head, *flags = text.split("/")
    written, *values = head.split(":")
    names = written.split("+")
    for name in names:
        if name not in METHODS or (len(names) > 1 and name not in registered()):
            raise MethodError(f"compressor: {name!r} is unknown; use one of {', '.join(METHODS)}")
    for flag in flags:
        if flag not in FLAGS:
            raise MethodError(f"compressor: {flag!r} of {text!r} is unknown; use {', '.join(FLAGS)}")
    if written not in registered() and len(names) == 1:
        if values or flags:
            raise MethodError(f"compressor: {text!r} has an argument or flag; write {written} alone")
        return Method(written, None, dense=written == DENSE)
    try:
        compressor = _compressor(names, values, flags, text, steps, seed)
    except CompressError as error:
        raise MethodError(f"compressor: {text!r}: {error}") from error
    feedback = False if "no-feedback" in flags else True if {"feedback", "momentum"} & {*flags} else None
    if feedback is False and compressor.momentum:
        raise MethodError(f"compressor: {text!r} has momentum without feedback; leave one out")
    return Method(text, compressor, False, feedback)


def _compressor(
    names: list[str], values: list[str], flags: list[str], text: str, steps: int, seed: int
) -> Compressor:
    """Return the compressor of these names, with arguments and flags as texts."""
    first = registered()[names[0]]
    arguments = dict[str, str]()
    for argument in values:
        field, equals, value = argument.partition("=")
        # A value alone is that of the first argument by position.
        if not equals and (field := next(iter(first.arguments))) == "per":
            raise MethodError(f"compressor: {first.name} takes no value; leave out ':{argument}'")
        arguments[field] = value if equals else argument
    for flag in flags:
        arguments |= FLAGS[flag]
    parts: list[Compressor] = []
    for kind in (registered()[name] for name in names):
        fields = kind.arguments.keys() & arguments
        options: dict[str, Any] = {
            field: kind.arguments[field].parsed(arguments.pop(field)) for field in fields
        }
        part = kind(**options)
        defaults: dict[str, Any] = {"seed": seed} if "seed" in kind.arguments else {}
        if getattr(part, "warm_up_steps", 0):
            defaults["warm_up_steps"] = round(_WARM_UP * steps)
        parts.append(replace(part, **{field: defaults[field] for field in defaults.keys() - options}))
    compressor, *quantizers = parts
    if arguments:
        unknown, usable = next(iter(arguments)), ", ".join(compressor.arguments)
        raise MethodError(f"compressor: {unknown!r} of {text!r} is unknown; use {usable}")
    if not quantizers:
        return compressor
    if not isinstance(compressor, Sparsifier) or len(quantizers) > 1:
        raise MethodError(f"compressor: {text!r} does not choose elements; write e.g. top-k+qsgd")
    return replace(compressor, quantizer=quantizers[0])

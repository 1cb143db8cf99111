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
        given = [_field(argument, registered()[names[0]]) for argument in values]
        arguments = dict(given) | {field: value for flag in flags for field, value in FLAGS[flag].items()}
        compressor = _made(names, arguments, text, steps, seed)
    except CompressError as error:
        raise MethodError(f"compressor: {text!r}: {error}") from error
    feedback = False if "no-feedback" in flags else True if {"feedback", "momentum"} & {*flags} else None
    if feedback is False and compressor.momentum:
        raise MethodError(f"compressor: {text!r} has momentum without feedback; leave one out")
    return Method(text, compressor, False, feedback)


def _field(text: str, compressor: type[Compressor]) -> tuple[str, str]:
    """Return an argument's field and value; a value alone is that of the first argument by position."""
    field, equals, value = text.partition("=")
    if equals:
        return field, value
    first = next(iter(compressor.arguments))
    if first == "per":
        raise MethodError(f"compressor: {compressor.name} takes no value; leave out ':{text}'")
    return first, text


def _made(names: list[str], given: dict[str, str], text: str, steps: int, seed: int) -> Compressor:
    """Return the compressor of these names, with arguments as texts."""
    parts: list[Compressor] = []
    for name in names:
        kind = registered()[name]
        options = {
            field: kind.arguments[field].parsed(given.pop(field)) for field in kind.arguments.keys() & given
        }
        made = kind(**options)
        defaults: dict[str, Any] = {}
        if "seed" in kind.arguments and "seed" not in options:
            defaults["seed"] = seed
        if getattr(made, "warm_up_steps", 0) and "warm_up_steps" not in options:
            defaults["warm_up_steps"] = round(_WARM_UP * steps)
        parts.append(replace(made, **defaults))
    if given:
        raise MethodError(
            f"compressor: {next(iter(given))!r} of {text!r} is unknown; use {', '.join(parts[0].arguments)}"
        )
    first, *others = parts
    if not others:
        return first
    if not isinstance(first, Sparsifier) or len(others) > 1:
        raise MethodError(f"compressor: {text!r} does not choose elements; write e.g. top-k+qsgd")
    return replace(first, quantizer=others[0])

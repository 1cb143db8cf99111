"""The arguments of compressors, as types declare them: allowed values, and how a command line writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin


class CompressError(Exception):
    """Base of this package's errors."""


class CompressConfigError(CompressError, ValueError):
    """An argument, a tensor or a restored value is not allowed."""


@dataclass(frozen=True)
class Allowed:
    """A condition on the numbers of a type, as in `Annotated[int, Allowed(...)]`."""

    test: Callable[[Any], bool]
    remedy: str
    """The end of the error message, after the name and the value."""


Share = Annotated[float, Allowed(lambda x: 0 < x <= 1, "is not a share; give a number above 0, up to 1")]
Momentum = Annotated[float, Allowed(lambda x: 0 <= x < 1, "is out of range; give a number from 0 to below 1")]
Norm = Annotated[float, Allowed(lambda x: 0 < x < float("inf"), "is not a norm; give a number above 0")]
Level = Annotated[float, Allowed(lambda x: 0 < x < float("inf"), "is not a threshold; give a number above 0")]
Steps = Annotated[int, Allowed(lambda x: x >= 0, "is not a number of steps; give an integer from 0 on")]
Count = Annotated[int, Allowed(lambda x: x >= 1, "is not a number of elements; give an integer from 1 on")]
Rank = Annotated[int, Allowed(lambda x: x >= 1, "is not a rank; give an integer from 1 on")]
Seed = Annotated[int, Allowed(lambda x: x >= 0, "is not a seed; give an integer from 0 on")]


@dataclass(frozen=True)
class Argument:
    """One argument of a compressor."""

    name: str
    kind: type
    """float, int, or the class of which it must be an instance."""
    choices: tuple[Any, ...]
    """All allowed values; empty for numbers and objects."""
    allowed: Allowed | None
    optional: bool
    """Whether it may be None."""

    @classmethod
    def of(cls, name: str, hint: Any) -> Argument:
        """Return the argument that a type hint declares. Raises CompressConfigError for other types."""
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        if get_origin(hint) in (Union, UnionType) and len(kinds) == 1:
            required = cls.of(name, kinds[0])
            return cls(name, required.kind, required.choices, required.allowed, optional=True)
        if get_origin(hint) is Annotated:
            kind, allowed = get_args(hint)
            return cls(name, kind, (), allowed, optional=False)
        if get_origin(hint) is Literal or hint is bool:
            return cls(name, object, get_args(hint) or (True, False), None, optional=False)
        if not isinstance(hint, type):
            raise CompressConfigError(f"{name}: has type {hint}; use int, float, bool, Literal or Annotated")
        return cls(name, hint, (), None, optional=False)

    def check(self, value: object) -> None:
        """Raise CompressConfigError for a value that is not allowed."""
        if value is None and self.optional:
            return
        if self.choices:
            if not any(type(value) is type(choice) and value == choice for choice in self.choices):
                choices = ", ".join(map(repr, self.choices))
                raise CompressConfigError(f"{self.name}: {value!r} is unknown; use {choices}")
            return
        numbers = {int: Integral, float: Real}.get(self.kind, self.kind)
        if (
            isinstance(value, bool)
            or not isinstance(value, numbers)
            or (self.allowed is not None and not self.allowed.test(value))
        ):
            remedy = self.allowed.remedy if self.allowed else f"is not {self._kind_name()}; give one"
            raise CompressConfigError(f"{self.name}: {value!r} {remedy}")

    def parsed(self, text: str) -> Any:
        """Return the value that a text on a command line stands for. Raises CompressConfigError."""
        if self.optional and text == "none":
            return None
        if self.choices:
            return {str(choice).lower(): choice for choice in self.choices}.get(text.lower(), text)
        try:
            return self.kind(text)
        except ValueError:
            kind = self._kind_name()
            raise CompressConfigError(f"{self.name}: {text!r} is not {kind}; write {kind}") from None

    def _kind_name(self) -> str:
        return {int: "an integer", float: "a number"}.get(self.kind, f"a {self.kind.__name__}")

"""Settings that a command line offers as options: help, range and default stand beside each setting.

`peelsum.cli.settings` makes a command's options of a settings class. Programs make the objects themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T", bound="Settings")


class OptionError(ValueError):
    """A value that an option does not take. The message names option, value and remedy."""


@dataclass(frozen=True)
class Option:
    """How a setting is an option, in its field's annotation: `Annotated[int, Option("Steps.", 1, 9)]`."""

    help: str = ""
    """The text of the option's help."""
    least: float = -float("inf")
    """The smallest value; of a list or mapping, of each of its values."""
    most: float = float("inf")
    """The largest value."""
    name: str = ""
    """The option's name, if it differs from the field's: `--name`."""
    metavar: str | None = None
    """The value's place in the help."""
    parse: Callable[[Any], Any] | None = None
    """Returns the setting for a text, or with `repeated` for a list of texts. Raises ValueError."""
    repeated: bool = False
    """Whether the option may be repeated."""
    envvar: str | None = None
    """The environment variable that replaces the option."""
    hidden: bool = False
    """Whether the help leaves the option out."""

    def check(self, name: str, value: object) -> None:
        """Raise OptionError, which names the option, if a number is out of range."""
        if isinstance(value, Mapping):
            value = tuple(value.values())
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not self.least <= number <= self.most:
                limits = f"{_plain(self.least)} to {_plain(self.most)}"
                raise OptionError(f"{name}: {_plain(number)} is out of range; use {limits}")

    def shown(self, default: object) -> Any:
        """Return the default of an option with `parse` as its text."""
        return ",".join(map(str, default)) if isinstance(default, tuple) else default


@dataclass(frozen=True)
class Settings:
    """Values that a command takes as options. A value out of range raises OptionError."""

    def __post_init__(self) -> None:
        for field, (name, option) in options_of(type(self)).items():
            option.check(name, getattr(self, field))


def options_of(settings: type) -> dict[str, tuple[str, Option]]:
    """Return each option's name, `--name`, and its declaration, by field."""
    hints = get_type_hints(settings, include_extras=True)
    declared = {
        field: next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Option)), None)
        for field, hint in hints.items()
    }
    return {
        field: (option.name or f"--{field.replace('_', '-')}", option)
        for field, option in declared.items()
        if option is not None
    }


def parsed(settings: type[T], values: dict[str, Any]) -> T:
    """Return the settings of a command's values, which are removed from `values`. Raises OptionError."""
    given = {}
    for field, (name, option) in options_of(settings).items():
        value = values.pop(field)
        if option.repeated and not value:
            continue
        try:
            given[field] = value if option.parse is None or value is None else option.parse(value)
        except ValueError as error:
            raise OptionError(f"{name}: {error}") from None
    return settings(**given)


def numbers(kind: type[int] | type[float]) -> Callable[[str], tuple[float, ...]]:
    """Return what parses numbers that are separated by commas."""

    def parse(text: str) -> tuple[float, ...]:
        try:
            return tuple(kind(number) for number in text.split(","))
        except ValueError:
            raise ValueError(f"{text!r} is no list of numbers; write numbers like 1,10") from None

    return parse


def names(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return what parses names that are separated by commas, all of which must be among `known`."""

    def parse(text: str) -> tuple[str, ...]:
        for name in text.split(","):
            if name not in known:
                raise ValueError(f"{name!r} is unknown; use one of {', '.join(known)}")
        return tuple(text.split(","))

    return parse


def _plain(value: float) -> str:
    """Return the number as one would type it: without exponent or trailing `.0`."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

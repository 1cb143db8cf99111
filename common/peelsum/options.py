"""Settings classes whose fields are command-line options, each declared with its help, range and default.

`peelsum.cli.options` generates a command's options from a settings class. Programs can also create the
objects directly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T", bound="CommandSettings")


class OptionError(ValueError):
    """The value of an option is invalid. The message names the option, the value and the remedy."""


@dataclass(frozen=True)
class Option:
    """The declaration of an option, as annotation of a field: `Annotated[int, Option("Steps.", 1, 9)]`."""

    help: str = ""
    """The text of the option's help."""
    least: float = -float("inf")
    """The smallest value; in a list or mapping, the smallest element."""
    most: float = float("inf")
    """The largest value."""
    name: str = ""
    """The option's name, if it differs from the field's: `--name`."""
    short: str = ""
    """A second name, as `-n`; requires `name`."""
    metavar: str | None = None
    """The placeholder for the value in the help."""
    parse: Callable[[Any], Any] | None = None
    """Converts the text of the option, or with `repeated` a list of texts. Raises ValueError."""
    repeated: bool = False
    """Whether the option may be repeated."""
    envvar: str | None = None
    """The environment variable that replaces the option."""
    hidden: bool = False
    """Whether the option is missing from the help."""

    def check(self, name: str, value: object) -> None:
        """Raise OptionError if a number in `value` is out of range. `name` is the option's in the message."""
        if isinstance(value, Mapping):
            value = tuple(value.values())
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not self.least <= number <= self.most:
                limits = _number_text(self.least)
                if self.most > self.least:
                    limits += f" to {_number_text(self.most)}"
                raise OptionError(f"{name}: {_number_text(number)} is out of range; use {limits}")

    def shown(self, default: object) -> Any:
        """Return a default value in the form in which a user types it."""
        return ",".join(map(str, default)) if isinstance(default, tuple) else default


@dataclass(frozen=True)
class CommandSettings:
    """Base class of settings. Its constructor raises OptionError for a value that is out of range."""

    def __post_init__(self) -> None:
        for field, (name, option) in options_of(type(self)).items():
            option.check(name, getattr(self, field))


def options_of(settings: type) -> dict[str, tuple[str, Option]]:
    """Return for each field that is an option its name, as `--name`, and its declaration."""
    return {
        field: (option.name or f"--{field.replace('_', '-')}", option)
        for field, hint in get_type_hints(settings, include_extras=True).items()
        for option in getattr(hint, "__metadata__", ())
        if isinstance(option, Option)
    }


def take_settings(settings: type[T], values: dict[str, Any]) -> T:
    """Create settings from a command's parameter values, and remove those from `values`.

    Raises OptionError for an invalid value.
    """
    field_values = {}
    for field, (name, option) in options_of(settings).items():
        value = values.pop(field)
        if option.repeated and not value:
            continue
        try:
            field_values[field] = value if option.parse is None or value is None else option.parse(value)
        except ValueError as error:
            raise OptionError(f"{name}: {error}") from None
    return settings(**field_values)


def numbers(kind: type[int] | type[float]) -> Callable[[str], tuple[float, ...]]:
    """Return a parser of numbers that are separated by commas. It raises ValueError."""

    def parse(text: str) -> tuple[float, ...]:
        try:
            return tuple(kind(number) for number in text.split(","))
        except ValueError:
            raise ValueError(f"{text!r} is no list of numbers; write numbers like 1,10") from None

    return parse


def names(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of names that are separated by commas. It raises ValueError for one not in `known`."""

    def parse(text: str) -> tuple[str, ...]:
        for name in text.split(","):
            if name not in known:
                raise ValueError(f"{name!r} is unknown; use one of {', '.join(known)}")
        return tuple(text.split(","))

    return parse


def _number_text(value: float) -> str:
    """Return the text of a number, without a trailing `.0`."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

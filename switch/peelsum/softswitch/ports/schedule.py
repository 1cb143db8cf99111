"""A schedule of changes of links' rates and delays, which is read from a TOML or CSV file.

A change holds until the next one of the same port. Time is an argument.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peelsum.reading import parse_toml, read_text
from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.runtime.queues import LEAST_MBIT, MOST_MBIT

#: Most bytes of a file; a change takes about 20.
_MOST_FILE_BYTES = 16 << 20

#: The largest delay, in milliseconds.
MOST_DELAY_MS = 60_000.0
_FIELDS = ("at_s", "mbit", "delay_ms", "port")


@dataclass(frozen=True)
class LinkState:
    """The rate and the delay of a port. Raises SoftswitchError for a value out of range."""

    mbit: float | None = None
    """Rate in Mbit/s; None does not change it."""
    delay_ms: float | None = None
    """Milliseconds from the departure of a frame's last bit to its arrival; None does not change it."""

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("mbit", self.mbit, LEAST_MBIT, MOST_MBIT),
            ("delay_ms", self.delay_ms, 0.0, MOST_DELAY_MS),
        ):
            if value is not None and not least <= value <= most:
                raise SoftswitchError(f"{name}: {value:g} is out of range; use {least:g} to {most:g}")

    def updated_by(self, change: LinkState) -> LinkState:
        """Return this state with the values that `change` sets."""
        return LinkState(
            self.mbit if change.mbit is None else change.mbit,
            self.delay_ms if change.delay_ms is None else change.delay_ms,
        )


@dataclass(frozen=True)
class Change:
    """A change of one port or of all."""

    at_s: float
    """Seconds from the start of the schedule."""
    state: LinkState
    """The rate and delay that it sets."""
    port: int | None = None
    """The port; None for all."""


class LinkSchedule:
    """Changes of links in order of time. Raises SoftswitchError naming a value out of range.

    `repeat_s`: seconds after which the schedule starts again from its beginning; None plays it once.
    """

    def __init__(self, changes: list[Change], repeat_s: float | None = None) -> None:
        for change in changes:
            if not 0 <= change.at_s < math.inf:
                raise SoftswitchError(f"at_s: {change.at_s:g} is not a time; use 0 or more seconds")
        self.changes = sorted(changes, key=lambda change: change.at_s)
        if not self.changes:
            raise SoftswitchError("schedule: has no change; give at least one")
        last = self.changes[-1].at_s
        if repeat_s is not None and not last < repeat_s < math.inf:
            raise SoftswitchError(
                f"repeat_s: {repeat_s:g} does not reach the last change; use more than {last:g}"
            )
        self.repeat_s = repeat_s

    @property
    def ports(self) -> frozenset[int]:
        """The ports that changes name."""
        return frozenset(change.port for change in self.changes if change.port is not None)

    def at(self, seconds: float, port: int) -> LinkState:
        """Return the state of a port at a time; a value that no change has set by then is None."""
        if self.repeat_s is None or seconds < self.repeat_s:
            return self._state_after(LinkState(), port, seconds)
        return self._state_after(self.final_state(port), port, seconds % self.repeat_s)

    def final_state(self, port: int) -> LinkState:
        """Return the state of a port after all changes; a value that no change sets is None."""
        return self._state_after(LinkState(), port, math.inf)

    def next_change(self, seconds: float) -> float | None:
        """Return the time of the first change after `seconds`; None if there is none."""
        cycle_start = 0.0 if self.repeat_s is None else seconds - seconds % self.repeat_s
        for change in self.changes:
            if cycle_start + change.at_s > seconds:
                return cycle_start + change.at_s
        return None if self.repeat_s is None else cycle_start + self.repeat_s + self.changes[0].at_s

    def _state_after(self, state: LinkState, port: int, until_s: float) -> LinkState:
        """Return `state` after the changes of a port up to a time."""
        for change in self.changes:
            if change.at_s <= until_s and change.port in (None, port):
                state = state.updated_by(change.state)
        return state


def load_schedule(path: Path) -> LinkSchedule:
    """Read a schedule from a file whose name ends in .toml or .csv.

    TOML has a table `[[change]]` for each change, with the keys at_s, mbit, delay_ms and port, of which only
    at_s is required. A top-level key `repeat_s` is optional. CSV has a line with these keys, then a line for
    each change. Raises SoftswitchError, which names file, value and remedy.
    """
    try:
        text = read_text(path, _MOST_FILE_BYTES)
        table = parse_toml(text, _MOST_FILE_BYTES) if path.suffix == ".toml" else _from_csv(text)
    except OSError as error:
        raise SoftswitchError(f"schedule: {path}: {error.strerror}; give a file that can be read") from error
    except ValueError as error:
        raise SoftswitchError(f"schedule: {path}: {error}; correct it") from error
    try:
        return _schedule(table)
    except SoftswitchError as error:
        raise SoftswitchError(f"schedule: {path}: {error}") from None


def _from_csv(text: str) -> dict[str, Any]:
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    return {"change": [{key: value for key, value in row.items() if value} for row in rows]}


def _schedule(table: Mapping[str, Any]) -> LinkSchedule:
    """Return the schedule in a file's table. Raises SoftswitchError for unknown keys."""
    unknown = set(table) - {"change", "repeat_s"}
    if unknown:
        raise SoftswitchError(f"{min(unknown)!r} is unknown; use [[change]] and repeat_s")
    rows = table.get("change", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SoftswitchError("change: is not a list of tables; write [[change]] before each")
    repeat_s = table.get("repeat_s")
    changes = [_change(row, number) for number, row in enumerate(rows, 1)]
    return LinkSchedule(changes, None if repeat_s is None else _number("repeat_s", repeat_s))


def _change(row: Mapping[str, Any], number: int) -> Change:
    """Return the change in one row. number: its place in the file, for errors."""
    unknown = {str(key) for key in row} - set(_FIELDS)
    if unknown:
        raise SoftswitchError(f"change {number}: {min(unknown)!r} is unknown; use {', '.join(_FIELDS)}")
    if "at_s" not in row:
        raise SoftswitchError(f"change {number}: has no at_s; say when, in seconds")
    values = {key: _number(f"change {number}: {key}", value) for key, value in row.items()}
    port = values.get("port")
    if port is not None and port != int(port):
        raise SoftswitchError(f"change {number}: port: {port:g} is not a port; give a whole number")
    try:
        state = LinkState(values.get("mbit"), values.get("delay_ms"))
    except SoftswitchError as error:
        raise SoftswitchError(f"change {number}: {error}") from None
    return Change(values["at_s"], state, None if port is None else int(port))


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise SoftswitchError(f"{name}: {value!r} is not a number") from None
    if isinstance(value, bool) or math.isnan(number):
        raise SoftswitchError(f"{name}: {value!r} is not a number")
    return number

"""The links at a switch's ports: rates, delays, and a schedule of their changes."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peelsum.reading import parse_toml, read_text
from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.ports.pacing import Pacer, Send
from peelsum.softswitch.runtime.queues import LEAST_MBIT, MOST_MBIT, QUEUE_LIMIT, Queues

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
        if path.suffix == ".toml":
            table = parse_toml(text, _MOST_FILE_BYTES)
        else:
            lines = csv.DictReader(text.splitlines(), skipinitialspace=True)
            table = {"change": [{key: value for key, value in line.items() if value} for line in lines]}
        if unknown := set(table) - {"change", "repeat_s"}:
            raise SoftswitchError(f"{min(unknown)!r} is unknown; use [[change]] and repeat_s")
        rows, repeat_s = table.get("change", []), table.get("repeat_s")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise SoftswitchError("change: is not a list of tables; write [[change]] before each")
        changes = []
        for number, row in enumerate(rows, 1):
            try:
                changes.append(_change(row))
            except SoftswitchError as error:
                raise SoftswitchError(f"change {number}: {error}") from None
        return LinkSchedule(changes, None if repeat_s is None else _number("repeat_s", repeat_s))
    except OSError as error:
        raise SoftswitchError(f"schedule: {path}: {error.strerror}; give a file that can be read") from error
    except ValueError as error:
        raise SoftswitchError(f"schedule: {path}: {error}; correct it") from error
    except SoftswitchError as error:
        raise SoftswitchError(f"schedule: {path}: {error}") from None


def _change(row: Mapping[str, Any]) -> Change:
    if unknown := {str(key) for key in row} - set(_FIELDS):
        raise SoftswitchError(f"{min(unknown)!r} is unknown; use {', '.join(_FIELDS)}")
    if "at_s" not in row:
        raise SoftswitchError("has no at_s; say when, in seconds")
    values = {key: _number(key, value) for key, value in row.items()}
    port = values.get("port")
    if port is not None and port != int(port):
        raise SoftswitchError(f"port: {port:g} is not a port; give a whole number")
    state = LinkState(values.get("mbit"), values.get("delay_ms"))
    return Change(values["at_s"], state, None if port is None else int(port))


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise SoftswitchError(f"{name}: {value!r} is not a number")
    return number


class Links:
    """Rates and delays of ports. `apply_schedule` changes them by a schedule.

    Theory of operation: a new rate holds for frames that are queued from then on, a new delay for frames that
    leave the queue from then on. Frames are never reordered: when a delay becomes shorter, later frames wait
    for earlier ones. The schedule starts with the first frame that arrives at a port.
    """

    def __init__(
        self,
        ports: Iterable[int],
        *,
        rates: Mapping[int, float] | None = None,
        delays: Mapping[int, float] | None = None,
        arrival_delays: Mapping[int, float] | None = None,
        schedule: LinkSchedule | None = None,
        queue_limit: int = QUEUE_LIMIT,
    ) -> None:
        """rates: Mbit/s by port. queue_limit: see `Queues`.

        delays, arrival_delays: milliseconds by port, for frames that it sends and for those that it receives.

        Raises SoftswitchError, which names it, for a value out of range or a port that is not in `ports`.
        """
        known_ports = sorted(ports)
        rates, self._delays, self._schedule = dict(rates or {}), dict(delays or {}), schedule
        _check_ports("port rate", rates, known_ports)
        self._arrival_delays = dict(arrival_delays or {})
        _check_ports("port delay", self._delays, known_ports)
        _check_ports("arrival delay", self._arrival_delays, known_ports)
        for delay_ms in (*self._delays.values(), *self._arrival_delays.values()):
            LinkState(delay_ms=delay_ms)
        self._final_states: dict[int, LinkState] = {}
        if schedule is not None:
            _check_ports("schedule", schedule.ports, known_ports)
            self._final_states = {port: schedule.final_state(port) for port in known_ports}
        for port, final_state in self._final_states.items():
            if final_state.mbit is not None and (rate := schedule.at(0, port).mbit if schedule else None):
                rates[port] = rate
            elif final_state.mbit is not None and port not in rates:
                raise SoftswitchError(f"schedule: port {port} has no rate at first; set mbit at 0 s")
            if final_state.delay_ms is not None:
                self._delays.setdefault(port, 0.0)
        self.queues = Queues(rates, queue_limit) if rates else None
        self._started_us: int | None = None

    @property
    def steady(self) -> bool:
        """Whether no link has a delay, and rates never change."""
        return self._schedule is None and not self._delays and not self._arrival_delays

    def pacer(self, send: Send) -> Pacer:
        """Return a pacer for these links, for a new pipeline."""
        self._next_s: float | None = 0.0
        return Pacer(self.queues, send, {port: round(1e3 * ms) for port, ms in self._delays.items()})

    def arrivals(self, process: Send) -> Pacer:
        """Return a pacer that delays received frames and passes them to `process`."""
        return Pacer(None, process, {port: round(1e3 * ms) for port, ms in self._arrival_delays.items()})

    def apply_schedule(self, pacer: Pacer, now_us: int) -> None:
        """Apply the schedule's changes that are due. The first call starts the schedule."""
        if self._schedule is None or self._next_s is None:
            return
        if self._started_us is None:
            self._started_us = now_us
        seconds = (now_us - self._started_us) / 1e6
        if seconds < self._next_s:
            return
        for port in self._final_states:
            state = self._schedule.at(seconds, port)
            if state.mbit is not None and self.queues is not None:
                self.queues.set_rate(port, state.mbit)
            if state.delay_ms is not None:
                pacer.set_delay(port, round(1e3 * state.delay_ms))
        self._next_s = self._schedule.next_change(seconds)


def _check_ports(setting: str, ports: Iterable[int], known_ports: Collection[int]) -> None:
    """Raise SoftswitchError if a setting names a port that is not among `known_ports`."""
    for port in ports:
        if port not in known_ports:
            raise SoftswitchError(
                f"{setting}: port {port} is not there; use one of {', '.join(map(str, known_ports))}"
            )

"""The links behind a switch's ports: rates, delays, and a schedule by which they change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.ports.pacing import Pacer, Send
from peelsum.softswitch.ports.schedule import LinkSchedule, LinkState
from peelsum.softswitch.runtime.queues import QUEUE_LIMIT, Queues


class Links:
    """Rates and delays of ports, which `follow` changes by a schedule.

    Theory of operation: a new rate holds for frames that join the port's queue from then on, a new delay for
    frames that leave it. Frames never overtake each other: when a delay is shortened, later frames wait for
    those under way. The schedule starts with the first frame that arrives at a port.
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

        delays, arrival_delays: milliseconds by port, of frames that it sends and that it receives.

        Raises SoftswitchError naming a value out of range, or a port that is not among `ports`.
        """
        known = sorted(ports)
        rates, self._delays, self._schedule = dict(rates or {}), dict(delays or {}), schedule
        _require_known("port rate", rates, known)
        self._arrival_delays = dict(arrival_delays or {})
        _require_known("port delay", self._delays, known)
        _require_known("arrival delay", self._arrival_delays, known)
        for delay_ms in (*self._delays.values(), *self._arrival_delays.values()):
            LinkState(delay_ms=delay_ms)
        self._scheduled: dict[int, LinkState] = {}
        if schedule is not None:
            _require_known("schedule", schedule.ports, known)
            self._scheduled = {port: schedule.always(port) for port in known}
        for port, first in self._scheduled.items():
            if first.mbit is not None and (rate := schedule.at(0, port).mbit if schedule else None):
                rates[port] = rate
            elif first.mbit is not None and port not in rates:
                raise SoftswitchError(f"schedule: port {port} has no rate at first; set mbit at 0 s")
            if first.delay_ms is not None:
                self._delays.setdefault(port, 0.0)
        self.queues = Queues(rates, queue_limit) if rates else None
        self._began_us: int | None = None

    @property
    def steady(self) -> bool:
        """Whether no link has a delay, and rates never change."""
        return self._schedule is None and not self._delays and not self._arrival_delays

    def pacer(self, send: Send) -> Pacer | None:
        """Return a pacer for these links, for a new pipeline; None if no port has a rate or delay."""
        self._next_s: float | None = 0.0
        if self.queues is None and not self._delays:
            return None
        return Pacer(self.queues, send, _microseconds(self._delays))

    def arrivals(self, process: Send) -> Pacer | None:
        """Return a pacer that passes received frames to `process` when they arrive; None without delays."""
        return Pacer(None, process, _microseconds(self._arrival_delays)) if self._arrival_delays else None

    def follow(self, pacer: Pacer, now_us: int) -> None:
        """Apply the changes that are due. The first call starts the schedule."""
        if self._schedule is None or self._next_s is None:
            return
        if self._began_us is None:
            self._began_us = now_us
        seconds = (now_us - self._began_us) / 1e6
        if seconds < self._next_s:
            return
        for port in self._scheduled:
            state = self._schedule.at(seconds, port)
            if state.mbit is not None and self.queues is not None:
                self.queues.set_rate(port, state.mbit)
            if state.delay_ms is not None:
                pacer.set_delay(port, round(1e3 * state.delay_ms))
        self._next_s = self._schedule.next_change(seconds)


def _microseconds(delays_ms: Mapping[int, float]) -> dict[int, int]:
    return {port: round(1e3 * ms) for port, ms in delays_ms.items()}


def _require_known(what: str, ports: Iterable[int], known: Collection[int]) -> None:
    for port in ports:
        if port not in known:
            raise SoftswitchError(
                f"{what}: port {port} is not there; use one of {', '.join(map(str, known))}"
            )

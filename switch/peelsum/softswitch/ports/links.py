"""The links at a switch's ports: rates, delays, and a schedule of their changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.ports.pacing import Pacer, Send
from peelsum.softswitch.ports.schedule import LinkSchedule, LinkState
from peelsum.softswitch.runtime.queues import QUEUE_LIMIT, Queues


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

    def pacer(self, send: Send) -> Pacer | None:
        """Return a pacer for these links, for a new pipeline; None if no port has a rate or delay."""
        self._next_s: float | None = 0.0
        if self.queues is None and not self._delays:
            return None
        return Pacer(self.queues, send, _microseconds(self._delays))

    def arrivals(self, process: Send) -> Pacer | None:
        """Return a pacer that delays received frames and passes them to `process`; None without delays."""
        return Pacer(None, process, _microseconds(self._arrival_delays)) if self._arrival_delays else None

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


def _microseconds(delays_ms: Mapping[int, float]) -> dict[int, int]:
    return {port: round(1e3 * ms) for port, ms in delays_ms.items()}


def _check_ports(setting: str, ports: Iterable[int], known_ports: Collection[int]) -> None:
    """Raise SoftswitchError if a setting names a port that is not among `known_ports`."""
    for port in ports:
        if port not in known_ports:
            raise SoftswitchError(
                f"{setting}: port {port} is not there; use one of {', '.join(map(str, known_ports))}"
            )

"""What all participants of a job agree on before the first packet, and how patient they are.

Pure values, checked once; knows no socket and no packet.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from peelsum.transport.errors import TransportConfigError
from peelsum.wire import MAX_WORKERS


@dataclass(frozen=True)
class Timers:
    """How long each side waits, in seconds.

    `first_answer`: a worker's wait while nothing at all comes back: others may still be computing.
    `resend_least`, `resend_most`: bounds of a worker's measured resend timer; back-off stops at the latter.
    It may be short: when nothing comes back, a worker asks about one chunk only.
    `need`, `need_most`: how long the server leaves a chunk incomplete before it asks, and its back-off's end.
    `reply_gap`: the server answers the same worker for the same chunk at most this often.
    `linger`: how long a worker that has all its results waits for the others before it leaves.
    `stall`: no progress for this long is reported as a stall.
    """

    first_answer: float = 0.1
    resend_least: float = 0.002
    resend_most: float = 0.1
    need: float = 0.01
    need_most: float = 0.5
    reply_gap: float = 0.001
    linger: float = 2.0
    stall: float = 30.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0 < value < float("inf"):
                raise TransportConfigError(
                    f"timers.{item.name}: {value} is no time to wait; give seconds above 0"
                )
            # Whole numbers too become floats: the loops would be compiled anew for integers.
            object.__setattr__(self, item.name, float(value))
        for least, most in (("resend_least", "resend_most"), ("need", "need_most")):
            if getattr(self, least) > getattr(self, most):
                raise TransportConfigError(
                    f"timers.{least}: {getattr(self, least)} s is above {most}; "
                    f"give at most {getattr(self, most)} s"
                )


@dataclass(frozen=True)
class JobConfig:
    """One generation of one job, the same for its workers and its server.

    `window` is W_max of the protocol: the most chunks a worker has outstanding. The switch needs at least
    `2 * window` slots. `first_chunk` is the chunk id that this generation starts with.
    Raises TransportConfigError naming field, value and remedy.
    """

    job_id: int
    generation: int
    workers: int
    lanes: int
    window: int = 1024
    first_chunk: int = 0
    initial_window: int = 128
    timers: Timers = field(default_factory=Timers)

    def __post_init__(self) -> None:
        _within("job_id", self.job_id, 1, 255)
        _within("generation", self.generation, 0, 0xFFFF)
        _within("workers", self.workers, 1, MAX_WORKERS)
        _within("lanes", self.lanes, 1, 4096)
        _within("window", self.window, 1, 1 << 16)
        _within("first_chunk", self.first_chunk, 0, 0xFFFFFFFF)
        _within("initial_window", self.initial_window, 1, 1 << 16)

    @property
    def expected_mask(self) -> int:
        """The bitmap of a complete sum: one bit per worker."""
        return (1 << self.workers) - 1


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise TransportConfigError(f"{name}: {value} is out of range; give a number from {least} to {most}")


def workers_in(bitmap: int) -> tuple[int, ...]:
    """The worker ids whose bits are set in `bitmap`, ascending."""
    return tuple(worker for worker in range(MAX_WORKERS) if bitmap >> worker & 1)

"""What all participants of a job agree on before the first packet, and how patient they are.

Pure values, checked once; knows no socket and no packet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from peelsum.transport.errors import TransportConfigError
from peelsum.wire import MAX_WORKERS

#: Racks below a spine: as many as a bitmap has bits.
MAX_RACKS = 32


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
    `racks`: how many of the `workers` each rack has, where the switches stand in two levels; empty with one
    switch. A worker's number is then rack * 32 + its place in the rack, else simply its place.
    Raises TransportConfigError naming field, value and remedy.
    """

    job_id: int
    generation: int
    workers: int
    lanes: int
    window: int = 1024
    first_chunk: int = 0
    initial_window: int = 128
    racks: tuple[int, ...] = ()
    timers: Timers = field(default_factory=Timers)

    def __post_init__(self) -> None:
        _within("job_id", self.job_id, 1, 255)
        _within("generation", self.generation, 0, 0xFFFF)
        _within("workers", self.workers, 1, MAX_WORKERS * (MAX_RACKS if self.racks else 1))
        _within("lanes", self.lanes, 1, 4096)
        self._check_racks()
        _within("window", self.window, 1, 1 << 16)
        _within("first_chunk", self.first_chunk, 0, 0xFFFFFFFF)
        _within("initial_window", self.initial_window, 1, 1 << 16)

    def _check_racks(self) -> None:
        object.__setattr__(self, "racks", tuple(self.racks))
        if not self.racks:
            return
        # A NEED names the missing workers of each rack in a lane of its own.
        _within("racks: their number", len(self.racks), 1, min(MAX_RACKS, self.lanes))
        for rack, workers in enumerate(self.racks):
            _within(f"racks[{rack}]", workers, 1, MAX_WORKERS)
        if sum(self.racks) != self.workers:
            raise TransportConfigError(
                f"racks: {self.racks} add up to {sum(self.racks)}, not to workers = {self.workers}; "
                "give how many workers each rack has"
            )

    @property
    def expected_mask(self) -> int:
        """The bitmap of a complete sum: one bit per worker, in two levels one per rack."""
        return (1 << (len(self.racks) or self.workers)) - 1

    @property
    def rack_masks(self) -> tuple[int, ...]:
        """The bitmap of each rack's complete sum; one rack in all where there is one level."""
        return tuple((1 << workers) - 1 for workers in self.racks or (self.workers,))

    @property
    def joining_chunks(self) -> int:
        """How many chunks a connection's first sum has, which has a word for each worker."""
        return -(-self.workers // self.lanes)

    @property
    def worker_ids(self) -> tuple[int, ...]:
        """The numbers of all workers, ascending."""
        return numbers_of(self.rack_masks)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise TransportConfigError(f"{name}: {value} is out of range; give a number from {least} to {most}")


def numbers_of(bitmaps: Iterable[int]) -> tuple[int, ...]:
    """The worker numbers whose bits are set, ascending; `bitmaps` has one bitmap for each rack, in order."""
    return tuple(
        rack * MAX_WORKERS + worker
        for rack, bitmap in enumerate(bitmaps)
        for worker in range(MAX_WORKERS)
        if int(bitmap) >> worker & 1
    )

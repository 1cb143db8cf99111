"""A job's configuration, on which all participants agree before the first packet, and their timers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from peelsum.transport.errors import TransportConfigError
from peelsum.wire import MAX_WORKERS, SECRET_BYTES

#: The environment variable in which `peelsum exec` gives a host's commands its seat, as JSON.
SEAT = "PEELSUM_SEAT"
#: The variable in the environment of a `peelsum up` network's processes that holds the network's unique name.
MARKER = "PEELSUM_NETWORK"
_SECRET = re.compile(f"([0-9a-f]{{{2 * SECRET_BYTES}}})?")
#: Most racks below a spine: a bitmap has one bit for each.
MAX_RACKS = 32


@dataclass(frozen=True)
class Timers:
    """Timers of workers and servers, in seconds."""

    first_answer: float = 0.1
    """A worker's longest wait while nothing has come back: other workers may still be computing.

    Once it has measured how long first answers take, it waits for twice that time.
    """
    resend_least: float = 0.0002
    """A worker's least wait before a chunk's further retransmissions, after the fifth.

    Earlier waits follow the measured round trips.
    """
    resend_most: float = 0.1
    """A worker's longest wait before a retransmission."""
    need: float = 0.01
    """How long the server leaves a chunk incomplete before it asks for the missing parts."""
    need_most: float = 0.5
    """Upper bound of the server's back-off."""
    reply_gap: float = 0.0001
    """Shortest time between two results of one chunk that the server sends to all again."""
    linger: float = 2.0
    """How long a worker that has all its results waits for the others before it leaves."""
    stall: float = 30.0
    """Time without progress after which a stall is reported."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0 < value < float("inf"):
                raise TransportConfigError(
                    f"timers.{item.name}: {value} is not a time to wait; give seconds above 0"
                )
            # Convert integers, for which the loops would be compiled again.
            object.__setattr__(self, item.name, float(value))
        for least, most in (("resend_least", "resend_most"), ("need", "need_most")):
            if getattr(self, least) > getattr(self, most):
                raise TransportConfigError(
                    f"timers.{least}: {getattr(self, least)} s is above {most}; "
                    f"give at most {getattr(self, most)} s"
                )


@dataclass(frozen=True)
class JobConfig:
    """One generation of one job; equal for its workers and its server, except for the timers.

    Raises TransportConfigError, which names field, value and remedy.
    """

    job_id: int
    """1 to 255."""
    generation: int
    """0 to 65535; higher at every admission."""
    workers: int
    """Number of workers, in all racks."""
    lanes: int
    """32-bit words per chunk; the same as in the switch's pipeline."""
    window: int = 1024
    """Most outstanding chunks of a worker, W in the protocol. The switch needs `2 * window` slots."""
    first_chunk: int = 0
    """Chunk id with which the generation starts."""
    initial_window: int = 128
    """Congestion window at the start, in chunks."""
    racks: tuple[int, ...] = ()
    """Number of workers in each rack if there are two levels of switches; empty with one switch.

    With racks, a worker's number is rack * 32 + its place in the rack.
    """
    timers: Timers = field(default_factory=Timers)
    """How long this participant waits."""
    secret: str = field(default="", repr=False)
    """What hosts prove at switch ports that are UDP sockets: 16 bytes in hexadecimal, or empty."""

    def __post_init__(self) -> None:
        _within("job_id", self.job_id, 1, 255)
        _within("generation", self.generation, 0, 0xFFFF)
        _within("workers", self.workers, 1, MAX_WORKERS * (MAX_RACKS if self.racks else 1))
        _within("lanes", self.lanes, 1, 4096)
        self._check_racks()
        _within("window", self.window, 1, 1 << 16)
        _within("first_chunk", self.first_chunk, 0, 0xFFFFFFFF)
        _within("initial_window", self.initial_window, 1, 1 << 16)
        if not _SECRET.fullmatch(self.secret):
            raise TransportConfigError(
                f"secret: {len(self.secret)} characters are not a secret; give that of the admission, "
                f"{2 * SECRET_BYTES} hexadecimal digits"
            )

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
        """Bitmap of a complete sum: one bit per worker, or per rack in two levels."""
        return (1 << (len(self.racks) or self.workers)) - 1

    @property
    def rack_masks(self) -> tuple[int, ...]:
        """Bitmap of each rack's complete sum; a single rack with one level."""
        return tuple((1 << workers) - 1 for workers in self.racks or (self.workers,))

    @property
    def joining_chunks(self) -> int:
        """Number of chunks of a connection's first sum, which has one word per worker."""
        return -(-self.workers // self.lanes)

    @property
    def worker_ids(self) -> tuple[int, ...]:
        """The numbers of all workers, ascending."""
        return numbers_of(self.rack_masks)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise TransportConfigError(f"{name}: {value} is out of range; give a number from {least} to {most}")


def numbers_of(bitmaps: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers of the workers whose bits are set, ascending. `bitmaps` has one bitmap per rack."""
    return tuple(
        rack * MAX_WORKERS + worker
        for rack, bitmap in enumerate(bitmaps)
        for worker in range(MAX_WORKERS)
        if int(bitmap) >> worker & 1
    )

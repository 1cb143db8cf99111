"""Small cases twice: simulated, and emulated by processes and a switch whose ports have a rate."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from peelsum.simulation import Job, NetworkSection, Scenario, simulate
from peelsum.summation import Part
from peelsum.topology import Star, TopologyError
from peelsum.transport import SwitchSummation, TransportError
from peelsum.transport.seats import plug_in


@dataclass(frozen=True)
class Compared:
    """The time of a sum, emulated and simulated."""

    workers: int
    """Number of workers."""
    mbit: float
    """Rate of every port of the switch in Mbit/s."""
    elements: int
    """Words of the sum."""
    emulated_s: float
    """Seconds of the fastest emulated sum: other load on the machine only adds."""
    simulated_s: float
    """Simulated seconds."""
    error: float
    """(simulated - emulated) / emulated."""
    wrong: int
    """Wrong sums of either."""
    load: float = field(compare=False, default=0.0)
    """The machine's load average over a minute, before the case; 0 if it is not known."""


def compared(
    workers: int = 4, mbit: float = 20.0, elements: int = 1 << 16, window: int = 128, sums: int = 5
) -> Compared:
    """Run the case both ways. Raises TopologyError if a process fails."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    emulated, wrong = _emulated(workers, mbit, elements, window, sums)
    # Loopback has hardly a delay; the switch's process takes about this time for a packet.
    network = NetworkSection(gbps=mbit / 1000, delay_us=50.0)
    job = Job(workers=workers, elements=elements, window=window, initial_window=window)
    row = simulate(Scenario(network=network, jobs=(job,))).jobs[0]
    error = (row.seconds - emulated) / emulated
    return Compared(workers, mbit, elements, emulated, row.seconds, error, wrong + row.wrong, load)


def _emulated(workers: int, mbit: float, elements: int, window: int, sums: int) -> tuple[float, int]:
    """Return the seconds of the fastest sum after the first, and the number of wrong ones."""
    words = np.random.default_rng(1).integers(0, 1 << 32, (workers, elements), np.uint32)
    expected = (words.astype(np.uint64).sum(0) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    times: list[float] = []
    wrong = [0] * workers
    errors: list[TransportError] = []

    def work(summation: SwitchSummation, worker: int) -> None:
        try:
            for _ in range(1 + sums):
                started = time.perf_counter()
                (found,) = summation.sum_words([Part(words[worker], "add")])
                if worker == 0:
                    times.append(time.perf_counter() - started)
                wrong[worker] += not np.array_equal(found, expected)
        except TransportError as error:
            errors.append(error)

    with Star(workers, window=window, rate_mbit=mbit) as star:
        _together([(plug_in(asdict(seat)), seat.worker_id) for seat in star.seats], work)
    if errors:
        raise TopologyError(f"emulated: {errors[0]}") from errors[0]
    return min(times[1:]), sum(wrong)


def _together(
    seats: Sequence[tuple[SwitchSummation, int]], work: Callable[[SwitchSummation, int], None]
) -> None:
    def run(summation: SwitchSummation, worker: int) -> None:
        with summation:
            work(summation, worker)

    threads = [threading.Thread(target=run, args=seat) for seat in seats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

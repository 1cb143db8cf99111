"""Check that a tensor can be measured in the machine's free memory."""

from __future__ import annotations

from pathlib import Path

#: Peak use: the tensor, its random numbers and copies of sent words per element; peeling per candidate.
_BYTES_PER_ELEMENT, _BYTES_PER_CANDIDATE = 24, 120


class NotEnoughMemoryError(ValueError):
    """A tensor is too large to be measured on this machine. The message says by how much."""


def require_memory(elements: int, density: float, workers: int = 1) -> None:
    """Raise NotEnoughMemoryError unless a tensor of `elements` elements of each worker can be measured."""
    each, free = workers * (_BYTES_PER_ELEMENT + _BYTES_PER_CANDIDATE * density), free_bytes()
    if free is not None and elements * each > free:
        raise NotEnoughMemoryError(
            f"--elements: {elements:,} at density {density:g} take about {elements * each / 2**30:,.1f} GiB, "
            f"and {free / 2**30:.1f} are free; use at most {int(free / each):,}"
        )


def free_bytes() -> int | None:
    """Return Linux's estimate of the available memory in bytes; None on other systems."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None

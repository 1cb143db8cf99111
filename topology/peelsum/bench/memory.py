"""Whether a tensor can be measured in the memory that this machine has left."""

from __future__ import annotations

from pathlib import Path

#: Peak: the tensor, its random numbers and copies of what travels; then what peeling holds.
_BYTES_PER_ELEMENT, _BYTES_PER_CANDIDATE = 24, 120


class NotEnoughMemoryError(ValueError):
    """A tensor is too large to be measured here. Says by how much."""


def require_memory(elements: int, density: float) -> None:
    """Raise NotEnoughMemoryError unless a tensor of so many elements can be measured."""
    each, free = _BYTES_PER_ELEMENT + _BYTES_PER_CANDIDATE * density, free_bytes()
    if free is not None and elements * each > free:
        raise NotEnoughMemoryError(
            f"--elements: {elements:,} at density {density:g} take about {elements * each / 2**30:,.1f} GiB, "
            f"and {free / 2**30:.1f} are free; use at most {int(free / each):,}"
        )


def free_bytes() -> int | None:
    """Memory that programs can still have, as Linux estimates it; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None

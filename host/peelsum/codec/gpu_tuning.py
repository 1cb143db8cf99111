"""How kernels are launched on each GPU: the size of a program's tile, and its warps.

`gpu_tuning.json` has a row for each measured device, by the name that its driver gives, and a default row for
all others. Tiles do not change results. `peelsum bench gpu_launches` measures a device and writes its row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

#: The table of rows.
TABLE = Path(__file__).with_suffix(".json")
_WARPS = (1, 2, 4, 8)


class Launch(NamedTuple):
    """How a kernel is launched."""

    tile: int
    """What a program works on: words of 32 elements, elements, or candidates."""
    warps: int
    """Warps of 32 threads in a program."""


Row = Mapping[str, Launch]
#: What `trying` sets, by kernel.
_TRIED: dict[str, Launch] = {}


def tuned(kernel: str, device: torch.device) -> Launch:
    """Return how to launch a kernel on a device: by the device's row, else by the default row."""
    return _TRIED.get(kernel) or _row(device)[kernel]


def default() -> Row:
    """Return the default row."""
    return _read(json.loads(TABLE.read_text())["default"])


def candidates(kernel: str) -> list[Launch]:
    """Return what is worth measuring for a kernel of the table: up to twice the default tile."""
    tile = default()[kernel].tile
    return [Launch(size, warps) for size in (tile // 4, tile // 2, tile, 2 * tile) for warps in _WARPS]


@contextmanager
def trying(kernel: str, launch: Launch) -> Iterator[None]:
    """Launch a kernel in this way on every device, inside the context."""
    _TRIED[kernel] = launch
    try:
        yield
    finally:
        del _TRIED[kernel]


def write_row(device: str, row: Row, path: Path = TABLE) -> None:
    """Write a device's row into the table."""
    table = json.loads(path.read_text())
    table["devices"][device] = {kernel: launch._asdict() for kernel, launch in row.items()}
    lines = [f'  "default": {_written(table["default"], 4)},', '  "devices": {']
    rows = [f'    "{name}": {_written(one, 6)}' for name, one in sorted(table["devices"].items())]
    path.write_text("\n".join(["{", *lines, ",\n".join(rows), "  }", "}"]) + "\n")
    _row.cache_clear()


def _written(row: Mapping[str, Mapping[str, int]], indent: int) -> str:
    lines = [f'{" " * indent}"{kernel}": {json.dumps(launch)}' for kernel, launch in row.items()]
    return "{\n" + ",\n".join(lines) + "\n" + " " * (indent - 2) + "}"


@cache
def _row(device: torch.device) -> Row:
    table = json.loads(TABLE.read_text())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return _read(table["default"]) | _read(table["devices"].get(name, {}))


def _read(row: Mapping[str, Mapping[str, int]]) -> dict[str, Launch]:
    return {kernel: Launch(**launch) for kernel, launch in row.items()}

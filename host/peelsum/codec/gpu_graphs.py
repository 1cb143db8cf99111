"""Launches whose arguments never change, captured once in a CUDA graph and then replayed with one launch.

A graph keeps addresses and numbers as they were. So a phase reads and writes only memory that lives as long
as the phase, and numbers that change are in that memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Launches = Callable[[], None]


class Phase:
    """Launches that are the same in each step, on one device.

    The first run launches them one by one, so that Triton compiles the kernels; the second captures them.
    """

    def __init__(self, launches: Launches, device: torch.device) -> None:
        self._launches, self._device = launches, device
        self._runs, self._replay = 0, launches

    def run(self) -> None:
        """Launch on the current stream of the device."""
        self._runs += 1
        if self._runs == 2:
            self._replay = captured(self._launches, self._device)
        self._replay()


def captured(launches: Launches, device: torch.device) -> Launches:
    """Return a function that replays the launches; on a CPU, the launches themselves.

    Other threads may use the device meanwhile, as a backward pass does.
    """
    if device.type != "cuda":
        return launches
    graph: Any = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            launches()
        finally:
            graph.capture_end()
    replay: Launches = graph.replay
    return replay

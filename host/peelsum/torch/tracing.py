"""Records the gradients of a hook's buckets, where `peelsum trace record` asks for it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch.distributed as dist

from peelsum.torch.buckets import Bucket
from peelsum.traces import SUFFIX, TraceRecorder, write

#: The environment variable with the settings, as JSON: folder, name, steps, values.
TRACE = "PEELSUM_TRACE"


class GradientRecorder:
    """Records the gradients of one rank. The file is written after `steps` steps, or by `close`."""

    def __init__(self, folder: str, name: str, steps: int, values: bool) -> None:
        self._folder, self._name, self._steps, self._values = Path(folder), name, steps, values
        #: None before the first bucket, and after the file has been written.
        self._recorder: TraceRecorder | None = None
        self._written = False
        self._lock = threading.Lock()
        #: When the computation began that leads to the next bucket.
        self._started_at = time.perf_counter()

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return a recorder with the settings of the environment; None if it has none."""
        settings = os.environ.get(TRACE)
        return None if settings is None else cls(**json.loads(settings))

    def record(self, names: Sequence[str], bucket: Bucket, group: dist.ProcessGroup | None) -> None:
        """Record a bucket before it is summed. The time of recording does not count as computing time."""
        if self._written:
            return
        now = time.perf_counter()
        with self._lock:
            ready_s = now - self._started_at
        if self._recorder is None:
            rank, workers = dist.get_rank(group), dist.get_world_size(group)
            self._recorder = TraceRecorder(self._name, rank, workers, values=self._values)
        with bucket.gradients(on_host=True) as gradients:
            flat = [gradient.detach().float().cpu().numpy() for gradient in gradients]
        self._recorder.add(names, [tuple(shape) for shape in bucket.shapes], flat, max(ready_s, 0.0))
        with self._lock:
            self._started_at += time.perf_counter() - now

    def note_sum(self, future: object) -> None:
        """Note that a sum is complete: the next step's computation begins after the last sum of this one."""
        with self._lock:
            self._started_at = time.perf_counter()

    def end_step(self) -> None:
        """End a step; write the trace if it was the last step to record."""
        if self._recorder is not None:
            self._recorder.end_step()
            if self._recorder.steps >= self._steps:
                self.close()

    def close(self) -> None:
        """Write the trace of the steps recorded so far, unless it has been written. Raises TraceError."""
        recorder, self._recorder, self._written = self._recorder, None, True
        if recorder is not None:
            trace = recorder.trace()
            write(trace, self._folder / f"worker-{trace.worker}{SUFFIX}")

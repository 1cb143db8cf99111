"""Traces: gradients of a training run as they are summed, in files that are read without torch.

`docs/reference/traces.md` describes the files. A trace is a folder with a file for each worker.
"""

from peelsum.traces.files import SUFFIX, VERSION, read, read_folder, write
from peelsum.traces.trace import Trace, TraceError, TraceRecorder, union_count

__all__ = [
    "SUFFIX",
    "VERSION",
    "Trace",
    "TraceError",
    "TraceRecorder",
    "read",
    "read_folder",
    "union_count",
    "write",
]

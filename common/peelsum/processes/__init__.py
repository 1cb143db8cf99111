"""Child processes that report to their parent, signals, progress messages, and errors of the command line."""

from peelsum.processes.children import Child, Signalled, end_with_parent, hear, say
from peelsum.processes.errors import ProcessError

__all__ = [
    "Child",
    "ProcessError",
    "Signalled",
    "end_with_parent",
    "hear",
    "say",
]

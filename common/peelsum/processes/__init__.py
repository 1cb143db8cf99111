"""Child processes that report to their parent, signals, progress messages, and errors of the command line."""

from peelsum.processes.children import (
    Child,
    SignalWaiter,
    receive_from_parent,
    send_to_parent,
    terminate_with_parent,
)
from peelsum.processes.errors import ProcessError

__all__ = [
    "Child",
    "ProcessError",
    "SignalWaiter",
    "receive_from_parent",
    "send_to_parent",
    "terminate_with_parent",
]

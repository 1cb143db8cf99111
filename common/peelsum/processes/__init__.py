"""Child processes that report to their parent, signals, progress messages, and errors of the command line."""

from peelsum.processes.children import (
    Child,
    SignalWaiter,
    print_message,
    receive_from_parent,
    terminate_with_parent,
)
from peelsum.processes.user_errors import ProcessError

__all__ = [
    "Child",
    "ProcessError",
    "SignalWaiter",
    "print_message",
    "receive_from_parent",
    "terminate_with_parent",
]

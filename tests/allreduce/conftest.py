"""Workers as threads over a sum in poisoned memory, which records the words that they send."""

import pytest
from allreduce_workers import Echo, Workers
from poison import poisoned_memory

__all__ = ["echo", "make_workers", "poisoned_memory"]


@pytest.fixture
def echo():
    """Return a backend of one worker, for tests that need no others."""
    return Echo()


@pytest.fixture
def make_workers():
    """Return the class `Workers`."""
    return Workers

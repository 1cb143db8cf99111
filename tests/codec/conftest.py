"""Codec tests run in poisoned memory."""

from poison import poisoned_memory

__all__ = ["poisoned_memory"]

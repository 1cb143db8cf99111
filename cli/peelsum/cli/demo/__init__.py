"""`peelsum demo`: workers train a language model, and the switch sums their gradients."""

from peelsum.cli.demo.command import command
from peelsum.cli.demo.worker import command as worker_command

__all__ = ["command", "worker_command"]

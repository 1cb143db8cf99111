"""`peelsum demo`: real workers train a real model, and the switch adds up their gradients."""

from peelsum.cli.demo.command import command
from peelsum.cli.demo.worker import command as worker_command

__all__ = ["command", "worker_command"]

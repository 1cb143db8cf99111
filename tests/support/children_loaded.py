"""What the parts of a network import, loaded once by the process from which tests fork them."""

import gc

import peelsum.cli.app
import peelsum.control
import peelsum.softswitch.process
import peelsum.topology.telling
import peelsum.transport.compiling  # noqa: F401
from peelsum.transport.warming import warm_up

warm_up(32)
# Children share what is never written to, and need not look through it for garbage.
gc.collect()
gc.freeze()

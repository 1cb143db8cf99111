"""What the parts of a network import, loaded once by the process from which tests fork them."""

import peelsum.cli.app
import peelsum.control
import peelsum.softswitch.process
import peelsum.topology
import peelsum.transport  # noqa: F401
from peelsum.transport.warming import warm_up

warm_up(32)

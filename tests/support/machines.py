"""Machines of a guide: network namespaces, each with a process whose namespace it is."""

import subprocess
from contextlib import ExitStack, contextmanager

from peelsum.topology.namespaces import hold_namespace, inside


def ip(machine, *words):
    """Run `ip` on a machine, which is its process's id."""
    subprocess.run(inside(machine, "ip", *words), check=True, capture_output=True, timeout=60)


@contextmanager
def machines(*names):
    """Machines that have loopback only, by name."""
    with ExitStack() as stack:
        found = {}
        for name in names:
            found[name] = hold_namespace(stack)
            ip(found[name], "link", "set", "lo", "up")
        yield found

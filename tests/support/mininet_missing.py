"""Whether Debian's Mininet can run here."""

import os
import subprocess
from functools import cache
from pathlib import Path

#: Debian's mininet belongs to this one.
SYSTEM_PYTHON = "/usr/bin/python3"


@cache
def mininet_missing():
    """Return what Mininet needs and this machine lacks; an empty text if nothing."""
    if os.getuid() != 0:
        return "Mininet needs root"
    if not Path(SYSTEM_PYTHON).exists():
        return f"{SYSTEM_PYTHON} is not there"
    done = subprocess.run([SYSTEM_PYTHON, "-c", "import mininet.net"], capture_output=True, check=False)
    return "mininet is not installed for the system's Python" if done.returncode else ""

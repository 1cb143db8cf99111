"""A standby process for an aggregation server: it imports and compiles, and waits for its parent's command.

`python -m peelsum.cli.standby_server LANES` reads a message with the command's `arguments` and `environment`.
"""

from __future__ import annotations

import os
import sys

from peelsum.cli import server
from peelsum.cli.main import main
from peelsum.processes import receive_from_parent
from peelsum.transport.warming import warm_up

__all__ = ["server"]

if __name__ == "__main__":
    warm_up(int(sys.argv[1]))
    message = receive_from_parent()
    os.environ.update(message["environment"])
    sys.argv[1:] = message["arguments"]
    main()

"""A process that has loaded the aggregation server ahead of use, and runs a command that its parent sends.

`python -m peelsum.cli.ahead LANES` reads a message with the command's `arguments` and its `environment`.
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

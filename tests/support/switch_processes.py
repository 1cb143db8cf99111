"""Switch processes for tests: ports that are free for them."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_udp_base(ports: int) -> int:
    """A number after which so many UDP ports are free."""
    for base in range(41000, 60000, 16):
        with ExitStack() as stack:
            try:
                for port in range(1, ports + 1):
                    one = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
                    one.bind(("127.0.0.1", base + port))
            except OSError:
                continue
            return base
    raise OSError("no UDP ports are free")

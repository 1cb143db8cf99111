"""Switch processes for tests: ports that are free for them."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

#: Below the ports that the kernel hands out by itself.
_FIRST, _END, _APART = 20_000, 32_000, 48
_given = 0


def free_udp_base(ports: int) -> int:
    """Return a number after which `ports` UDP ports are free.

    Test processes that run side by side start at different numbers, and none gets the same number twice.
    """
    global _given
    places = (_END - _FIRST) // _APART
    for _ in range(places):
        base = _FIRST + (os.getpid() + _given) % places * _APART
        _given += 1
        if _are_free(range(base + 1, base + 1 + ports)):
            return base
    raise OSError("no UDP ports are free")


def _are_free(ports: range) -> bool:
    with ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

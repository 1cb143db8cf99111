"""Ports that are free for a test's processes."""

import os
import socket
from contextlib import ExitStack

import pytest

#: Below the ports that the kernel hands out by itself.
_FIRST, _END, _APART = 20_000, 32_000, 48
_given = 0


def free_udp_base(ports):
    """Return a number after which `ports` UDP ports are free.

    Test processes that run side by side start at distant numbers, and none gets the same number twice.
    """
    global _given
    places = (_END - _FIRST) // _APART
    for _ in range(places):
        base = _FIRST + (31 * os.getpid() + _given) % places * _APART
        _given += 1
        if _are_free(range(base + 1, base + 1 + ports)):
            return base
    raise OSError("no UDP ports are free")


def _are_free(ports):
    with ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)).bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class KeptPort:
    """A TCP port of loopback that the kernel gives to nobody else, also while nothing listens on it.

    Servers that set SO_REUSEADDR can listen on it, one after the other, until it is closed.
    """

    def __init__(self):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.number}"

    def close(self):
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture
def kept_port():
    with KeptPort() as port:
        yield port

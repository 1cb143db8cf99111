"""Parse the address of a service, `host:port`."""

from __future__ import annotations


def parse_address(
    text: str, what: str = "the address", example: str = "127.0.0.1:9559", least_port: int = 0
) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 address stands in brackets, which are left out.

    Raises ValueError, whose message calls the address `what` and does not name the text; callers prepend it.
    """
    host, _, port = text.rpartition(":")
    bracketed = host[:1] == "[" and host[-1:] == "]"
    name = host[1:-1] if bracketed else host
    valid_port = port.isdecimal() and least_port <= int(port) <= 0xFFFF
    if not name or (":" in host and not bracketed) or not valid_port:
        raise ValueError(f"give {what} as host:port, for example {'[::1]:9559' if ':' in host else example}")
    return name, int(port)

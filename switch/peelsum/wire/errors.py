"""The one error of the wire format."""


class WireError(ValueError):
    """Bytes that are no peelsum packet, or values that do not fit one. Says field, value and remedy."""

"""The error of the wire format."""


class WireError(ValueError):
    """Bytes are not a peelsum packet, or values do not fit a field. Names field, value and remedy."""

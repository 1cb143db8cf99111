"""The error of this package."""


class TlsError(ValueError):
    """A certificate, key, token or address cannot be used. The message is one line."""

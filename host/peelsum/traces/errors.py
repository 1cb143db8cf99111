"""The package's error."""


class TraceError(ValueError):
    """A trace that cannot be read or written. The message names file, fault and remedy in one line."""

"""The one error of the codec."""


class CodecError(ValueError):
    """A request that the codec cannot serve. Says field, value and remedy."""

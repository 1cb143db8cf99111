"""The codec's error."""


class CodecError(ValueError):
    """A request that the codec cannot serve. The message names field, value and remedy in one line."""

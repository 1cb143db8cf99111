"""Errors of compression. Messages name field, value and remedy in one line."""


class CompressError(Exception):
    """Base of this package's errors."""


class CompressConfigError(CompressError, ValueError):
    """An argument, a tensor or a restored value that a compressor or a memory cannot use."""

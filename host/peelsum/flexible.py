"""The former name of the strategy, which is part of `peelsum.compress`."""

raise ImportError(
    "peelsum.flexible: is part of peelsum.compress; write e.g. `from peelsum.compress import Flexible`"
)

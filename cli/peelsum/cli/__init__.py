"""The `peelsum` command line, which puts all parts together."""

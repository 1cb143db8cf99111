"""Runs `peelsum` as `python -m peelsum.cli`."""

from peelsum.cli.main import main

main()

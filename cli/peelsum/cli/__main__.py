"""`python -m peelsum.cli`: the same as `peelsum`."""

from peelsum.cli.main import main

main()

"""The experiments that `python -m benchmarks list` lists: each file defines one, as `EXPERIMENT`."""

"""The experiments that `peelsum bench list` lists: each file defines one, as `EXPERIMENT`."""

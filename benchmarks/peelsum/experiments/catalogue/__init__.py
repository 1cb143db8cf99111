"""The experiments that `peelsum experiment list` lists: each file defines one, as `EXPERIMENT`."""

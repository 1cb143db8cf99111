"""The codec in Numba: the bits of `peelsum.codec.reference`, on all cores, one pass over memory each."""

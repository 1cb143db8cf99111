"""The codec in Triton, on torch tensors, with the bits of `peelsum.codec.reference`."""

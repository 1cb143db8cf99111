"""The compressors, one in each file; `peelsum.compress` exports them."""

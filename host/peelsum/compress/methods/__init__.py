"""The compressors; `peelsum.compress` exports them."""

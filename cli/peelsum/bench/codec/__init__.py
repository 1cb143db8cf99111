"""Size and speed of the codec, with random tensors by support."""

"""The codec in plain NumPy, to be read: the reference that every other device matches bit for bit."""

"""Turns a program into the source text of one Python function that takes a batch of frames through it."""

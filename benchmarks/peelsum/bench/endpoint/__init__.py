"""Packets that one core of a worker sends and takes results for."""

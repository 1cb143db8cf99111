"""Packets a second and latency of a switch, by target, lanes and workers."""

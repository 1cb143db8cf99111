"""Benchmarks. Each returns rows; the command line prints them."""

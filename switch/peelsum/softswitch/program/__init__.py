"""Reads a BMv2 JSON file into typed, immutable values."""

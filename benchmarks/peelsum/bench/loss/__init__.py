"""The cost of lost packets."""

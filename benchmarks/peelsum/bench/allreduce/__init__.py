"""Time of an all-reduce by size and density, beside the same elements sent dense."""

"""What a BMv2 JSON file says, as typed, immutable values."""

"""How jobs that compete for a switch port share it."""

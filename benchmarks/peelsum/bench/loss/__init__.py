"""What lost packets cost."""

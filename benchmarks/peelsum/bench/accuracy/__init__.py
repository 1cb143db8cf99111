"""What compression costs in accuracy, and on which links it pays."""

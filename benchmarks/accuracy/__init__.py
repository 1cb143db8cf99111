"""The cost of compression in accuracy, and the links on which it pays."""

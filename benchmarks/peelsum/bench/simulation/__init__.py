"""Simulated allreduces: scale, slots, loss, and what the formulas are calibrated with."""

"""Simulated allreduces: by workers, slots, loss and density; and the calibration of the formulas."""

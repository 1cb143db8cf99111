"""What reproduces our pages' figures: `python -m benchmarks NAME`, from the root of a checkout.

An experiment is one file of `experiments`, or a file of one's own, that sets EXPERIMENT.
"""

from benchmarks.experiment import SERIES, Experiment, ExperimentError, Plot, Series, Size, Value

__all__ = ["SERIES", "Experiment", "ExperimentError", "Plot", "Series", "Size", "Value"]

"""Experiments: from a small Python file to rows, figures and a page.

An experiment is a file that defines `EXPERIMENT`: parameters, a function that measures one row, and what is
plotted. `peelsum experiment run` runs it. Needs the extra `experiments`.
"""

from peelsum.experiments.experiment import (
    Column,
    Experiment,
    ExperimentError,
    Plot,
    Published,
    Sentences,
    Size,
    Value,
)

__all__ = ["Column", "Experiment", "ExperimentError", "Plot", "Published", "Sentences", "Size", "Value"]

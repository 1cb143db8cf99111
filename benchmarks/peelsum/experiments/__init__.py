"""Measurements: from a small Python file to rows, figures and a page.

An experiment is a file that defines `EXPERIMENT`: parameters, a function that measures rows, and plots.
`peelsum bench run` runs it. Figures need the extra `plots`.
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

__all__ = [
    "Column",
    "Experiment",
    "ExperimentError",
    "Plot",
    "Published",
    "Sentences",
    "Size",
    "Value",
]

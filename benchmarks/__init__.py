"""What reproduces our pages' figures: `python -m benchmarks NAME`, from the root of a checkout.

An experiment is one file of `experiments`, or a file of one's own, that sets EXPERIMENT.
"""

from benchmarks.experiment import SERIES, Experiment, ExperimentError, Plot, Published, Series, Size, Value

__all__ = ["SERIES", "Experiment", "ExperimentError", "Plot", "Published", "Series", "Size", "Value"]


def __getattr__(name: str) -> None:
    if name == "Column":
        raise ExperimentError(
            "Column: a column is its meaning; write columns={'name': 'meaning'}, and name those that a model "
            "computes in modelled_columns"
        )
    raise AttributeError(name)

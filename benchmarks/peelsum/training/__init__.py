"""The four models whose training LHC's paper measures, with their data, at the published size and small.

A task is a model, which returns the loss of a batch, and the source of its batches. Two more models,
`convolutional` and `transformer`, are small enough to be trained to the end in a minute. Needs torch.
"""

from peelsum.training.density import Density, densities, overall
from peelsum.training.task import Batch, Task, TrainingDataError
from peelsum.training.tasks import DATA, MODELS, ModelName, make_task

__all__ = [
    "DATA",
    "MODELS",
    "Batch",
    "Density",
    "ModelName",
    "Task",
    "TrainingDataError",
    "densities",
    "make_task",
    "overall",
]

"""The four models whose training LHC's paper measures, each with its data, at the published size and small.

A task is a model that is called with a batch and returns its loss, and where its batches come from. How
workers sum gradients is not known here. Needs torch.
"""

from peelsum.training.density import Density, densities, overall
from peelsum.training.errors import TrainingDataError
from peelsum.training.task import Batch, Task
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

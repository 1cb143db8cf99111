"""The four models whose training LHC's paper measures, in the published size and small, with their data.

A task is a model, which returns the loss of a batch, and the source of its batches. Needs torch.
"""

from peelsum.training.task import (
    DATA,
    MODELS,
    Batch,
    ModelName,
    Task,
    TrainingDataError,
    check_model,
    make_task,
    one_thread,
)

__all__ = [
    "DATA",
    "MODELS",
    "Batch",
    "ModelName",
    "Task",
    "TrainingDataError",
    "check_model",
    "make_task",
    "one_thread",
]

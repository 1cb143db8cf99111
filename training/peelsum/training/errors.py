"""The error for training data."""


class TrainingDataError(ValueError):
    """Data that are missing or in the wrong format. The message names path, fault and what to pass."""

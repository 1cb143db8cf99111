"""What can be wrong with training data."""


class TrainingDataError(ValueError):
    """Data that is missing, or not what the model reads. Says the path, what is wrong and what to pass."""

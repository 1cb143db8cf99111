"""Time of a step by method: dense or sparse, by every collective, predicted and measured."""

from peelsum.bench.methods.predicted import MethodRow, advice, method_rows

__all__ = ["MethodRow", "advice", "method_rows"]

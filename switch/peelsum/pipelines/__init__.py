"""The compiled pipelines that come with peelsum, and the compilers that build them."""

from peelsum.pipelines.artifacts import Pipeline, PipelineError, pipeline

__all__ = ["Pipeline", "PipelineError", "pipeline"]

"""Verifies a program once for all switches of this process, and of those forked from it: it never changes."""

from functools import lru_cache

from finsy.proto import p4r

from peelsum.softswitch.p4runtime import pipeline
from peelsum.softswitch.p4runtime.info import PipelineInfo
from peelsum.softswitch.program.model import Program

_verify = pipeline.verify


@lru_cache(maxsize=16)
def _verified(config: bytes) -> tuple[PipelineInfo, Program]:
    return _verify(p4r.ForwardingPipelineConfig.FromString(config))


def verify(config: p4r.ForwardingPipelineConfig) -> tuple[PipelineInfo, Program]:
    """Do what the switch's own function does, which this one replaces; errors are not kept."""
    program = p4r.ForwardingPipelineConfig(p4info=config.p4info, p4_device_config=config.p4_device_config)
    return _verified(program.SerializeToString(deterministic=True))


pipeline.verify = verify

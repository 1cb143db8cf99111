"""What the parts of a network import, load and verify, once for all that tests fork from this process."""

import gc

import command_line
import grpc._channel  # which gRPC imports when it is used
import grpc._server  # noqa: F401
from finsy.p4schema import P4Schema
from finsy.proto import p4r

from peelsum.pipelines import pipeline
from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime import pipeline as requests
from peelsum.softswitch.p4runtime.info import PipelineInfo
from peelsum.softswitch.program.model import Program
from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.queues import Queues
from peelsum.transport.warming import warm_up

_LANES = (32, 256)
_verify = requests.verify
_verified: list[tuple[p4r.ForwardingPipelineConfig, tuple[PipelineInfo, Program]]] = []


def _verified_before(config: p4r.ForwardingPipelineConfig) -> tuple[PipelineInfo, Program]:
    """Return the known result for our own pipelines, which never change; verify others."""
    for known, found in _verified:
        if (known.p4_device_config, known.p4info) == (config.p4_device_config, config.p4info):
            return found
    return _verify(config)


for lanes in _LANES:
    warm_up(lanes)
    ours = pipeline(lanes)
    sent = P4Schema(ours.p4info_path, ours.json_path.read_bytes()).get_pipeline_config()
    _verified.append((sent, _verify(sent)))
    # Children find machine code among the modules, and its source by the program.
    for queues in (None, Queues({})):
        Switch(_verified[-1][1][1], queues=queues).process(Frames.of([(1, bytes(64))]), 0)
requests.verify = _verified_before
command_line.peelsum("--version")
# Children share what is never written to, and need not look through it for garbage.
gc.collect()
gc.freeze()

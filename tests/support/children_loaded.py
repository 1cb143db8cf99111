"""What the parts of a network import, load and verify, once for all that tests fork from this process."""

import gc

import command_line
import grpc._channel  # which gRPC imports when it is used
import grpc._server  # noqa: F401
from verified_once import verify

from peelsum.control.session import pipeline_schema
from peelsum.pipelines import pipeline
from peelsum.softswitch import Switch
from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.queues import Queues
from peelsum.transport.warming import warm_up

_LANES = (32, 256)
for lanes in _LANES:
    warm_up(lanes)
    ours = pipeline(lanes)
    sent = pipeline_schema(ours.json_path, ours.p4info_path).get_pipeline_config()
    _, program = verify(sent)
    # Children find machine code among the modules, and its source by the program.
    for queues in (None, Queues({})):
        Switch(program, queues=queues).process(Frames.of([(1, bytes(64))]), 0)
command_line.peelsum("--version")
# Children share what is never written to, and need not look through it for garbage.
gc.collect()
gc.freeze()

"""BF Runtime's messages and calls, from the compiled declaration beside this file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_SERVICE = "bfrt_proto.BfRuntime"
_pool = DescriptorPool()
for _file in FileDescriptorSet.FromString((Path(__file__).parent / "bfruntime.binpb").read_bytes()).file:
    _pool.Add(_file)


def message(name: str) -> Any:
    """Return the class of a message, by its name in the declaration, e.g. `WriteRequest`."""
    return GetMessageClass(_pool.FindMessageTypeByName(f"bfrt_proto.{name}"))


#: What the methods of the service take and return.
METHODS = {
    "Write": (message("WriteRequest"), message("WriteResponse")),
    "Read": (message("ReadRequest"), message("ReadResponse")),
    "SetForwardingPipelineConfig": (
        message("SetForwardingPipelineConfigRequest"),
        message("SetForwardingPipelineConfigResponse"),
    ),
    "GetForwardingPipelineConfig": (
        message("GetForwardingPipelineConfigRequest"),
        message("GetForwardingPipelineConfigResponse"),
    ),
    "StreamChannel": (message("StreamMessageRequest"), message("StreamMessageResponse")),
}
Update, Entity, TableEntry = message("Update"), message("Entity"), message("TableEntry")
Error = message("Error")
Get, Set = (METHODS[f"{verb}ForwardingPipelineConfig"][0] for verb in ("Get", "Set"))
WriteRequest, ReadRequest, StreamRequest = (METHODS[m][0] for m in ("Write", "Read", "StreamChannel"))
#: All pipes of a device, as `pipe_id`.
ALL_PIPES = 0xFFFF


class Stub:
    """The calls of one channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        def path(name: str) -> tuple[str, Callable[[Any], bytes], Callable[[bytes], Any]]:
            request, response = METHODS[name]
            return f"/{_SERVICE}/{name}", request.SerializeToString, response.FromString

        #: Each takes its request and `timeout`; StreamChannel an iterator of requests.
        self.write: Callable[..., Any] = channel.unary_unary(*path("Write"))
        self.read: Callable[..., Iterator[Any]] = channel.unary_stream(*path("Read"))
        self.set_config: Callable[..., Any] = channel.unary_unary(*path("SetForwardingPipelineConfig"))
        self.get_config: Callable[..., Any] = channel.unary_unary(*path("GetForwardingPipelineConfig"))
        self.stream: Callable[..., Any] = channel.stream_stream(*path("StreamChannel"))

"""BF Runtime's messages and calls, from the compiled declaration beside this file, and their errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import rpc_status
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from peelsum.control.errors import RefusedError, SwitchError, UnsupportedError, translated

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
_DETAILS_KEY = "grpc-status-details-bin"
#: Text of bf_switchd with the code that gRPC has for a lost connection.
_FROM_SWITCH = re.compile(r"\b(unknown|for) client\b", re.IGNORECASE)
_CODES = {code.value[0]: code for code in grpc.StatusCode}


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


def codes(error: Any) -> set[grpc.StatusCode]:
    """Return the codes of the failure: of the request's parts if the switch names them, or the call's."""
    parts = {_CODES[one.canonical_code] for one in _failures(error).values()}
    return parts or {error.code()}


def refused(error: Any, address: str, doing: str, updates: Sequence[Any] = ()) -> SwitchError:
    """Return the SwitchError for a gRPC error; `updates` are a failed Write's."""
    failures = _failures(error)
    words = " ".join((error.details() or "").split())
    if not failures and error.code() == grpc.StatusCode.UNAVAILABLE and _FROM_SWITCH.search(words):
        return SwitchError(f"switch: {address} refused {doing}: {words}; try again")
    if not failures:
        return translated(error, address, doing, election_id=0)
    number, first = next(iter(failures.items()))
    words = " ".join(first.message.split()) or _CODES[first.canonical_code].name
    if _CODES[first.canonical_code] == grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedError(f"switch: {address} refused {doing}: {words}")
    what = f"update {number} of {len(updates)}: " if updates else ""
    return RefusedError(f"switch: {address} refused {doing}: {what}{words}", words)


def _failures(error: Any) -> dict[int, Any]:
    """Return the errors of a request's parts, by their index."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            found = [Error.FromString(one.value) for one in rpc_status.Status.FromString(value).details]
            return {number: one for number, one in enumerate(found) if one.canonical_code}
    return {}

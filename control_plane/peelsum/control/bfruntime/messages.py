"""BF Runtime's messages and calls, from the compiled protobuf file beside this module, and their errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import rpc_status
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from peelsum.control.errors import SwitchError, UnsupportedError, UpdateRefusedError, switch_error

_SERVICE = "bfrt_proto.BfRuntime"
_pool = DescriptorPool()
for _file in FileDescriptorSet.FromString((Path(__file__).parent / "bfruntime.binpb").read_bytes()).file:
    _pool.Add(_file)


def message(name: str) -> Any:
    """Return the class of a protobuf message by its name, e.g. `WriteRequest`."""
    return GetMessageClass(_pool.FindMessageTypeByName(f"bfrt_proto.{name}"))


_methods = _pool.FindServiceByName(_SERVICE).methods
#: The service's methods, with the classes of their requests and responses.
METHODS: dict[str, tuple[Any, Any]] = {
    each.name: (GetMessageClass(each.input_type), GetMessageClass(each.output_type)) for each in _methods
}
#: By method, gRPC's name for how many messages it takes and returns, such as `unary_stream`.
CARDINALITIES = {
    each.name: "_".join(
        "stream" if many else "unary" for many in (each.client_streaming, each.server_streaming)
    )
    for each in _methods
}
Update, Entity, Error = message("Update"), message("Entity"), message("Error")
Get, Set = (METHODS[f"{verb}ForwardingPipelineConfig"][0] for verb in ("Get", "Set"))
WriteRequest, ReadRequest, StreamRequest = (METHODS[m][0] for m in ("Write", "Read", "StreamChannel"))
#: The `pipe_id` of all pipes of a device.
ALL_PIPES = 0xFFFF
#: bf_switchd uses UNAVAILABLE, gRPC's code for a lost connection, for some errors with these texts.
_NOT_A_LOST_CONNECTION = re.compile(r"\b(unknown|for) client\b", re.IGNORECASE)
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def method(channel: grpc.Channel, name: str) -> Callable[..., Any]:
    """Return a method of the service: it takes a request, or an iterator of requests, and `timeout`."""
    request, response = METHODS[name]
    open_call = getattr(channel, CARDINALITIES[name])
    call: Callable[..., Any] = open_call(
        f"/{_SERVICE}/{name}", request.SerializeToString, response.FromString
    )
    return call


def codes(error: Any) -> set[grpc.StatusCode]:
    """Return the error codes of a request's parts if the response has them, otherwise the call's code."""
    part_codes = {_CODES[part.canonical_code] for part in _failures(error).values()}
    return part_codes or {error.code()}


def switch_error_of(error: Any, address: str, doing: str, updates: Sequence[Any] = ()) -> SwitchError:
    """Translate a gRPC error into a SwitchError.

    doing: the operation that failed, e.g. 'writing'. updates: the updates of a failed Write.
    """
    failures = _failures(error)
    reason = " ".join((error.details() or "").split())
    if not failures and error.code() == grpc.StatusCode.UNAVAILABLE and _NOT_A_LOST_CONNECTION.search(reason):
        return SwitchError(f"switch: {address} refused {doing}: {reason}; try again")
    if not failures:
        return switch_error(error, address, doing, election_id=0)
    number, first = next(iter(failures.items()))
    reason = " ".join(first.message.split()) or _CODES[first.canonical_code].name
    if _CODES[first.canonical_code] == grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedError(f"switch: {address} refused {doing}: {reason}")
    what = f"update {number} of {len(updates)}: " if updates else ""
    return UpdateRefusedError(f"switch: {address} refused {doing}: {what}{reason}", reason)


def _failures(error: Any) -> dict[int, Any]:
    """Return the errors of those parts of a request that failed, by their index."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    errors = [Error.FromString(error.value) for error in rpc_status.Status.FromString(details).details]
    return {number: error for number, error in enumerate(errors) if error.canonical_code}

"""The P4Runtime service of one device.

It admits only the primary's writes, and of TLS clients those whose role allows them. It keeps the running
pipeline and translates errors to gRPC statuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from threading import BoundedSemaphore, Thread, Timer
from urllib.parse import unquote

import grpc
from finsy.proto import p4r, p4r_grpc

from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.p4runtime.arbitration import Arbiter
from peelsum.softswitch.p4runtime.packets import to_frame, to_packet_in
from peelsum.softswitch.p4runtime.pipeline import Pipeline, verify
from peelsum.softswitch.p4runtime.status import (
    DETAILS_KEY,
    ERROR_SPACE,
    BatchError,
    Code,
    RequestError,
    code_number,
    from_bug,
    from_switch_error,
    invalid,
    unimplemented,
)
from peelsum.softswitch.p4runtime.stream import ControllerStream
from peelsum.softswitch.p4runtime.turns import Turns
from peelsum.softswitch.runtime.device import Device
from peelsum.tls import Role, caller_role

API_VERSION = "1.4.0"
#: Most streams open at once; each holds a thread of the server.
MAX_STREAMS = 64
#: Most Writes and Reads that wait for their turn, and most pipelines that wait to be built. Each holds a
#: thread.
MAX_WAITING = 32
MAX_CONFIGURING = 4
#: Most Reads that are answered at the same time, and seconds that a client has to take its answer.
MAX_READS = 16
READ_S = 30.0
_WRITERS = (Role.OPERATOR,)
_READERS = (Role.OPERATOR, Role.VIEWER)
_ENTITIES_PER_RESPONSE = 256
_LONGEST_MESSAGE = 1000
_Set = p4r.SetForwardingPipelineConfigRequest
_NO_PIPELINE = "No forwarding pipeline config set for this device; send SetForwardingPipelineConfig first"


class P4RuntimeService(p4r_grpc.P4RuntimeServicer):
    """All RPCs. A request that fails gets an error status and never ends the server."""

    def __init__(self, device: Device, *, secured: bool) -> None:
        """secured: the server has TLS; without, all clients are on this machine, and may do all."""
        self._device, self._secured = device, secured
        self._arbiter = Arbiter(device.device_id)
        self._turns = Turns(MAX_WAITING)
        self._configuring = Turns(MAX_CONFIGURING)
        self._running: Pipeline | None = None
        self._free_streams = BoundedSemaphore(MAX_STREAMS)
        self._free_reads = BoundedSemaphore(MAX_READS)
        device.on_packet_in(self._packet_in)

    def _require(self, call: grpc.ServicerContext, allowed: tuple[Role, ...], doing: str) -> None:
        """Raise RequestError (PERMISSION_DENIED) unless the client's role is among `allowed`."""
        if self._secured and (role := caller_role(call.peer())) not in allowed:
            raise RequestError(
                Code.PERMISSION_DENIED,
                f"{doing}: needs a certificate of role {' or '.join(allowed)}; this client's has role {role}",
            )

    # Unary RPCs

    def Capabilities(  # noqa: N802 (gRPC's name)
        self, request: p4r.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4r.CapabilitiesResponse:
        """Return the version of the P4Runtime API."""
        with _aborting(context):
            self._require(context, _READERS, "capabilities")
        return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def Write(self, request: p4r.WriteRequest, context: grpc.ServicerContext) -> p4r.WriteResponse:  # noqa: N802
        """Attempt every update of the batch in order, even if others fail, until the call ends."""
        with _aborting(context):
            self._require(context, _WRITERS, "write")
            self._check_device(request.device_id)
            self._arbiter.require_primary(request.election_id, request.role)
            if request.atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
                raise unimplemented("atomicity other than CONTINUE_ON_ERROR")
            with self._turns.turn(context, len(request.updates)):
                # Another client may have become the primary while this call waited.
                self._arbiter.require_primary(request.election_id, request.role)
                self._pipeline().entities.write(request.updates, context.is_active)
        return p4r.WriteResponse()

    def Read(  # noqa: N802
        self, request: p4r.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[p4r.ReadResponse]:
        """Yield all entities that the request selects, several hundred per message."""
        with _aborting(context):
            self._require(context, _READERS, "read")
            self._check_device(request.device_id)
            if request.role:
                raise unimplemented(f"role {request.role}")
            with self._turns.turn(context):
                entities = self._pipeline().entities
                found = chain.from_iterable([entities.read(wanted) for wanted in request.entities])
            yield from self._sent(found, context)

    def _sent(self, found: Iterator[p4r.Entity], context: grpc.ServicerContext) -> Iterator[p4r.ReadResponse]:
        """Yield the read entities in parts. Cut off a client that takes too long: it holds a thread."""
        if not self._free_reads.acquire(blocking=False):
            raise RequestError(
                Code.RESOURCE_EXHAUSTED,
                f"{MAX_READS} Reads are being answered; wait for one to end, then retry",
            )
        late = Timer(READ_S, context.cancel)
        late.daemon = True
        try:
            while chunk := list(islice(found, _ENTITIES_PER_RESPONSE)):
                if len(chunk) == _ENTITIES_PER_RESPONSE and not late.is_alive():
                    late.start()
                yield p4r.ReadResponse(entities=chunk)
        finally:
            late.cancel()
            self._free_reads.release()

    def SetForwardingPipelineConfig(  # noqa: N802
        self, request: p4r.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.SetForwardingPipelineConfigResponse:
        """Verify or commit a pipeline. The running one forwards until the new one is ready."""
        with _aborting(context):
            self._set_pipeline(request, context)
        return p4r.SetForwardingPipelineConfigResponse()

    def _set_pipeline(
        self, request: p4r.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> None:
        self._require(context, _WRITERS, "pipeline")
        self._check_device(request.device_id)
        self._arbiter.require_primary(request.election_id, request.role)
        match request.action:
            case _Set.VERIFY | _Set.VERIFY_AND_COMMIT if not request.HasField("config"):
                raise invalid("config: is missing; give the pipeline's")
            case _Set.VERIFY:
                with self._configuring.turn(context):
                    verify(request.config)
            case _Set.VERIFY_AND_COMMIT:
                # Building takes seconds, during which the running pipeline is written and read as before.
                with self._configuring.turn(context):
                    built = Pipeline(request.config, self._device)
                    with self._turns.turn(context):
                        self._arbiter.require_primary(request.election_id, request.role)
                        with self._device.lock:
                            self._device.install(built.switch)
                            self._running = built
            case _Set.VERIFY_AND_SAVE | _Set.COMMIT | _Set.RECONCILE_AND_COMMIT as action:
                raise unimplemented(f"action {_Set.Action.Name(action)}")
            case other:
                raise invalid(f"action: {other} is not in the specification; use VERIFY_AND_COMMIT")

    def GetForwardingPipelineConfig(  # noqa: N802
        self, request: p4r.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.GetForwardingPipelineConfigResponse:
        """Return the configuration that reads and writes refer to."""
        with _aborting(context):
            self._require(context, _READERS, "read")
            self._check_device(request.device_id)
            config = self._pipeline().described(request.response_type)
        return p4r.GetForwardingPipelineConfigResponse(config=config)

    def _pipeline(self) -> Pipeline:
        """Return the running pipeline. Raises RequestError without one."""
        if self._running is None:
            raise RequestError(Code.FAILED_PRECONDITION, _NO_PIPELINE)
        return self._running

    def _check_device(self, device_id: int) -> None:
        if device_id != self._device.device_id:
            raise RequestError(
                Code.NOT_FOUND, f"device_id: no device {device_id}; this is device {self._device.device_id}"
            )

    # The stream

    def StreamChannel(  # noqa: N802
        self, request_iterator: Iterator[p4r.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4r.StreamMessageResponse]:
        """Serve arbitration and packets until the client or an arbitration error ends the stream."""
        with _aborting(context):
            # A viewer's stream could bid for primary, and so keep operators from writing.
            self._require(context, _WRITERS, "stream")
            if not self._free_streams.acquire(blocking=False):
                most = f"{MAX_STREAMS} streams are open already; close one"
                raise RequestError(Code.RESOURCE_EXHAUSTED, most)
            stream = ControllerStream(context.cancel, _client(context))
            self._arbiter.enter(stream)
            try:
                if context.add_callback(stream.end):
                    Thread(target=self._listen, args=(stream, request_iterator), daemon=True).start()
                    yield from stream.responses()
            finally:
                self._arbiter.leave(stream)
                self._free_streams.release()

    def _listen(self, stream: ControllerStream, requests: Iterable[p4r.StreamMessageRequest]) -> None:
        """Handle a client's messages, in a thread of its own."""
        ending: RequestError | None = None
        with suppress(grpc.RpcError):  # the client has disconnected and cannot receive the end's status
            for request in requests:
                try:
                    self._message(stream, request)
                except Exception as error:
                    ending = error if isinstance(error, RequestError) else from_bug(error)
                    break
        stream.end(ending)

    def _message(self, stream: ControllerStream, request: p4r.StreamMessageRequest) -> None:
        match request.WhichOneof("update"):
            case "arbitration":
                self._arbiter.bid(stream, request.arbitration)
            case "packet":
                try:
                    self._packet_out(stream, request.packet)
                except RequestError as error:
                    report = _stream_error(error)
                    report.packet_out.packet_out.CopyFrom(request.packet)
                    stream.send(p4r.StreamMessageResponse(error=report))
            case "digest_ack":
                report = _stream_error(unimplemented("digest_ack"))
                report.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
                stream.send(p4r.StreamMessageResponse(error=report))
            case other:
                report = _stream_error(unimplemented(f"stream message {other or 'without content'}"))
                report.other.SetInParent()
                stream.send(p4r.StreamMessageResponse(error=report))

    def _packet_out(self, stream: ControllerStream, packet: p4r.PacketOut) -> None:
        if self._arbiter.primary is not stream:
            raise RequestError(
                Code.PERMISSION_DENIED, "packet_out: only the primary sends packets; win the election"
            )
        # Under the lock, no commit comes between encoding the header for a pipeline and queueing the frame.
        with self._device.lock:
            injected = self._device.inject(to_frame(packet, self._pipeline().info))
        if not injected:
            raise RequestError(
                Code.RESOURCE_EXHAUSTED, "packet_out: too many wait for the data plane; send slower"
            )

    def _packet_in(self, frames: Sequence[bytes]) -> None:
        """Send frames that left on the CPU port to the primary, if there is one."""
        stream, pipeline = self._arbiter.primary, self._running
        if stream is not None and pipeline is not None:
            for frame in frames:
                stream.send_packet(to_packet_in(frame, pipeline.info))


def _client(context: grpc.ServicerContext) -> str:
    """Return a client's address, and its process id if it gives that."""
    address = unquote(context.peer()).partition(":")[2]
    process = dict(context.invocation_metadata()).get("process")
    known = isinstance(process, str) and process.isdecimal()
    return f"process {process!s} at {address}" if known else address


def _stream_error(error: RequestError) -> p4r.StreamError:
    return p4r.StreamError(canonical_code=code_number(error.code), message=error.message, space=ERROR_SPACE)


@contextmanager
def _aborting(context: grpc.ServicerContext) -> Iterator[None]:
    """End an RPC with the status of the error that the body raises, if it does."""
    try:
        yield
    except Exception as error:
        answer = from_switch_error(error) if isinstance(error, SoftswitchError) else error
        if not isinstance(answer, RequestError):
            answer = from_bug(error)
        details = answer.details() if isinstance(answer, BatchError) else None
        if details is not None:
            context.set_trailing_metadata(((DETAILS_KEY, details),))
        context.abort(answer.code, answer.message[:_LONGEST_MESSAGE])

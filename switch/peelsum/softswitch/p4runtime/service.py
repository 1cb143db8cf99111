"""The P4Runtime service of one device: all RPCs.

Only the primary may write. With TLS, a client's role must allow each call. Errors become gRPC statuses.
"""

from __future__ import annotations

import errno
import logging
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from threading import BoundedSemaphore, Condition, Thread, Timer
from time import monotonic

import grpc
from finsy.proto import p4r, p4r_grpc

from peelsum.addresses import parse_address
from peelsum.logs import RateLimit
from peelsum.softswitch.p4runtime import status
from peelsum.softswitch.p4runtime.info import to_frame, to_packet_in
from peelsum.softswitch.p4runtime.notifications import notify, poll_regularly
from peelsum.softswitch.p4runtime.pipeline import InstalledPipeline, verify
from peelsum.softswitch.p4runtime.stream import Arbiter, ControllerStream
from peelsum.softswitch.runtime.device import Device
from peelsum.tls import Role, TlsIdentity, caller_address, caller_role, require_tls
from peelsum.tls.grpc_ends import LimitedServer

API_VERSION = "1.4.0"
#: Most streams open at once; each holds a thread of the server.
MAX_STREAMS = 64
#: Most Writes and Reads that wait in the queue, and most pipelines that wait to be built. Each holds a
#: thread.
MAX_WAITING = 32
MAX_CONFIGURING = 4
#: Most Reads that are answered at the same time, and seconds in which a client must have received its answer.
MAX_READS = 16
READ_TIMEOUT_S = 30.0
_WRITERS = (Role.OPERATOR,)
_READERS = (Role.OPERATOR, Role.VIEWER)
_ENTITIES_PER_RESPONSE = 256
_LONGEST_MESSAGE = 1000
_Set = p4r.SetForwardingPipelineConfigRequest
_NO_PIPELINE = "No forwarding pipeline config set for this device; send SetForwardingPipelineConfig first"


class P4RuntimeService(p4r_grpc.P4RuntimeServicer):
    """All RPCs. A request that fails gets an error status and never ends the server."""

    def __init__(self, device: Device, *, secured: bool) -> None:
        """secured: whether the server has TLS. Without it, all clients are local, and may do all."""
        self._device, self._secured = device, secured
        self._arbiter = Arbiter(device.device_id)
        self._state_requests = RequestQueue(MAX_WAITING)
        self._build_requests = RequestQueue(MAX_CONFIGURING)
        #: The pipeline to which reads and writes refer: the last one that was saved or committed.
        self._saved: InstalledPipeline | None = None
        #: The pipeline that processes packets; None before the first commit.
        self._running: InstalledPipeline | None = None
        #: Ends the notifications of the running pipeline.
        self.stop: Callable[[], None] = lambda: None
        self._free_streams = BoundedSemaphore(MAX_STREAMS)
        self._free_reads = BoundedSemaphore(MAX_READS)
        device.on_packet_in(self._packet_in)

    @contextmanager
    def _answering(
        self,
        call: grpc.ServicerContext,
        allowed: tuple[Role, ...],
        operation: str,
        device_id: int | None = None,
    ) -> Iterator[None]:
        """End an RPC with the status of the error that the body raises, if it does.

        Do not run the body unless the client's role is `allowed` and the device, if given, is this one.
        """
        try:
            if self._secured and (role := caller_role(call.peer())) not in allowed:
                raise status.denied(
                    f"{operation}: needs a certificate of role {' or '.join(allowed)}; "
                    f"this client's has role {role}"
                )
            if device_id not in (None, self._device.device_id):
                raise status.RequestError(
                    status.Code.NOT_FOUND,
                    f"device_id: no device {device_id}; this is device {self._device.device_id}",
                )
            yield
        except Exception as error:
            answer = status.request_error(error)
            details = answer.details() if isinstance(answer, status.BatchError) else None
            if details is not None:
                call.set_trailing_metadata(((status.DETAILS_KEY, details),))
            call.abort(answer.code, answer.message[:_LONGEST_MESSAGE])

    # Unary RPCs

    def Capabilities(  # noqa: N802 (gRPC's name)
        self, request: p4r.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4r.CapabilitiesResponse:
        """Return the version of the P4Runtime API."""
        with self._answering(context, _READERS, "capabilities"):
            return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def Write(self, request: p4r.WriteRequest, context: grpc.ServicerContext) -> p4r.WriteResponse:  # noqa: N802
        """Attempt the updates of the batch in order, all or none if the client wants; stop if it cancels."""
        with self._answering(context, _WRITERS, "write", request.device_id):
            self._arbiter.require_primary(request)
            if request.atomicity not in p4r.WriteRequest.Atomicity.values():
                raise status.invalid(f"atomicity: {request.atomicity} is not in the specification")
            with self._state_requests.turn(context, len(request.updates)):
                # Another client may have become the primary while this call waited.
                self._arbiter.require_primary(request)
                self._pipeline().entities.write(request.updates, context.is_active, request.atomicity)
        return p4r.WriteResponse()

    def Read(  # noqa: N802
        self, request: p4r.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[p4r.ReadResponse]:
        """Yield the entities that the request selects, several hundred per message."""
        with self._answering(context, _READERS, "read", request.device_id):
            with self._state_requests.turn(context):
                entities = self._pipeline().entities
                entities_read = chain.from_iterable(list(map(entities.read, request.entities)))
            yield from self._responses(entities_read, context)

    def _responses(
        self, entities: Iterator[p4r.Entity], context: grpc.ServicerContext
    ) -> Iterator[p4r.ReadResponse]:
        """Yield entities in messages. Cancel the call of a client that is too slow, as it holds a thread."""
        if not self._free_reads.acquire(blocking=False):
            raise status.exhausted(f"{MAX_READS} Reads are being answered; wait for one to end, then retry")
        timeout = Timer(READ_TIMEOUT_S, context.cancel)
        timeout.daemon = True
        try:
            while entities_of_response := list(islice(entities, _ENTITIES_PER_RESPONSE)):
                if len(entities_of_response) == _ENTITIES_PER_RESPONSE and not timeout.is_alive():
                    timeout.start()
                yield p4r.ReadResponse(entities=entities_of_response)
        finally:
            timeout.cancel()
            self._free_reads.release()

    def SetForwardingPipelineConfig(  # noqa: N802
        self, request: p4r.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.SetForwardingPipelineConfigResponse:
        """Verify, save or commit a pipeline. While a new one is built, the running one continues."""
        with self._answering(context, _WRITERS, "pipeline", request.device_id):
            self._arbiter.require_primary(request)
            action = request.action
            if action not in _Set.Action.values() or action == _Set.UNSPECIFIED:
                raise status.invalid(f"action: {action} is not in the specification; use VERIFY_AND_COMMIT")
            if request.HasField("config") is (action == _Set.COMMIT):
                remedy = "leave it out, to commit the saved one" if action == _Set.COMMIT else "give one"
                raise status.invalid(f"config: does not fit {_Set.Action.Name(action)}; {remedy}")
            with self._build_requests.turn(context):
                if action == _Set.VERIFY:
                    verify(request.config)
                else:
                    self._set_pipeline(request, context)
        return p4r.SetForwardingPipelineConfigResponse()

    def _set_pipeline(
        self, request: p4r.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> None:
        # Building takes seconds. Meanwhile, Writes and Reads of the present pipeline continue.
        built = InstalledPipeline(request.config, self._device) if request.HasField("config") else None
        with self._state_requests.turn(context):
            self._arbiter.require_primary(request)
            pipeline = built or self._pipeline()
            if request.action == _Set.RECONCILE_AND_COMMIT and self._saved is not None:
                pipeline.copy_state(self._saved)
            self._saved = pipeline
            if request.action != _Set.VERIFY_AND_SAVE and pipeline is not self._running:
                with self._device.lock:
                    self._device.install(pipeline.switch)
                    self._running = pipeline
                self.stop()
                poll = partial(notify, pipeline, self._notify)
                self.stop = poll_regularly(pipeline.switch.program, poll, pipeline.check_ports)

    def GetForwardingPipelineConfig(  # noqa: N802
        self, request: p4r.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.GetForwardingPipelineConfigResponse:
        """Return the configuration that reads and writes refer to."""
        with self._answering(context, _READERS, "read", request.device_id):
            config = self._pipeline().to_response(request.response_type)
        return p4r.GetForwardingPipelineConfigResponse(config=config)

    def _pipeline(self) -> InstalledPipeline:
        """Return the pipeline that was saved or committed last. Raises RequestError without one."""
        if self._saved is None:
            raise status.RequestError(status.Code.FAILED_PRECONDITION, _NO_PIPELINE)
        return self._saved

    # The stream

    def StreamChannel(  # noqa: N802
        self, request_iterator: Iterator[p4r.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4r.StreamMessageResponse]:
        """Serve arbitration and packets until the client or an arbitration error ends the stream."""
        # A viewer's stream could bid for primary, and so keep operators from writing.
        with self._answering(context, _WRITERS, "stream"):
            if not self._free_streams.acquire(blocking=False):
                most = f"{MAX_STREAMS} streams are open already; close one"
                raise status.exhausted(most)
            stream = ControllerStream(context.cancel, partial(_client_name, context))
            self._arbiter.open(stream)
            try:
                if context.add_callback(stream.end):
                    Thread(
                        target=self._receive_messages, args=(stream, request_iterator), daemon=True
                    ).start()
                    yield from stream.responses()
            finally:
                self._arbiter.close(stream)
                self._free_streams.release()

    def _receive_messages(
        self, stream: ControllerStream, requests: Iterable[p4r.StreamMessageRequest]
    ) -> None:
        """Handle the messages of a stream's client until it ends; runs in a thread of its own."""
        ending: status.RequestError | None = None
        with suppress(grpc.RpcError):  # the client has disconnected and cannot receive a status
            for request in requests:
                try:
                    self._handle_message(stream, request)
                except Exception as error:
                    ending = status.request_error(error)
                    break
        stream.end(ending)

    def _handle_message(self, stream: ControllerStream, request: p4r.StreamMessageRequest) -> None:
        """Handle one message of a stream's client; report errors other than the election's on the stream."""
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            self._arbiter.bid(stream, request.arbitration)
            return
        try:
            match kind:
                case "packet" | "digest_ack" if not self._arbiter.is_primary(stream):
                    raise status.denied(f"{kind}: only the primary sends these; win the election")
                case "packet":
                    self._packet_out(request.packet)
                case "digest_ack":
                    running = self._running or self._pipeline()
                    running.entities.digests.acknowledge(request.digest_ack)
                case _:
                    raise status.unimplemented(f"stream message {kind or 'without content'}")
        except status.RequestError as error:
            report = p4r.StreamError(
                canonical_code=error.code.value[0], message=error.message, space=status.ERROR_SPACE
            )
            match kind:
                case "packet":
                    report.packet_out.packet_out.CopyFrom(request.packet)
                case "digest_ack":
                    report.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
                case _:
                    report.other.SetInParent()
            stream.send(p4r.StreamMessageResponse(error=report))

    def _packet_out(self, packet: p4r.PacketOut) -> None:
        """Queue a PacketOut for the data plane. Raises RequestError if too many wait."""
        # The lock prevents a commit between encoding the header for a pipeline and queueing the frame for it.
        with self._device.lock:
            running = self._running or self._pipeline()
            injected = self._device.inject(to_frame(packet, running.info))
        if not injected:
            raise status.exhausted("packet_out: too many wait for the data plane; send slower")

    def _packet_in(self, frames: Sequence[bytes]) -> None:
        """Send frames that left on the CPU port to the controllers that receive packets."""
        pipeline = self._running
        if pipeline is not None:
            for frame in frames:
                self._notify(p4r.StreamMessageResponse(packet=to_packet_in(frame, pipeline.info)))

    def _notify(self, message: p4r.StreamMessageResponse) -> bool:
        """Send a message to the controllers that receive packets; return whether one gets it."""
        sent = [stream.send_or_drop(message) for stream in self._arbiter.packet_receivers]
        return any(sent)


def _client_name(context: grpc.ServicerContext) -> str:
    """Return a client's address, and its process id if it gives that."""
    address = caller_address(context.peer())
    process = dict(context.invocation_metadata()).get("process")
    has_process = isinstance(process, str) and process.isdecimal()
    return f"process {process!s} at {address}" if has_process else address


#: Each stream and each waiting call holds a thread; the remaining threads answer or refuse other calls.
_THREADS = MAX_STREAMS + MAX_WAITING + MAX_CONFIGURING + MAX_READS + 12
#: The longest request. A compiled pipeline has a few megabytes, a Write of 40,000 table entries about four.
_MOST_REQUEST_BYTES = 16 << 20
_STOP_GRACE_S = 0.1
#: Prefix of the names of the server's threads.
THREAD_PREFIX = "p4runtime"


@dataclass(frozen=True)
class RunningServer:
    """A P4Runtime server that answers at host:port until `stop`.

    stop: ends every call, and frees the port. A compilation in progress continues in its thread.
    """

    address: str
    port: int
    stop: Callable[[], None]


def serve(
    device: Device,
    address: str = "127.0.0.1:9559",
    identity: TlsIdentity | None = None,
    *,
    any_address: bool = False,
) -> RunningServer:
    """Serve P4Runtime for a device at `address` (host:port; port 0 takes a free one).

    identity: if given, clients must use TLS with a certificate, whose role limits what they may do.
    any_address: whether the address may be beyond loopback without an identity.
    Raises ValueError if the address is malformed or not permitted; OSError if the
    server cannot listen on it.
    """
    try:
        host, _ = parse_address(address)
    except ValueError as error:
        raise ValueError(f"P4Runtime address: {address!r}: {error}") from None
    if not any_address:
        require_tls("P4Runtime address", host, identity)
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=THREAD_PREFIX)
    logging.getLogger("grpc._server").addFilter(RateLimit())
    try:
        server = LimitedServer(
            address, identity, threads=threads, calls=_THREADS, message_bytes=_MOST_REQUEST_BYTES
        )
    except OSError:
        reason = f"P4Runtime address: cannot listen on {address}; free it or choose another"
        raise OSError(errno.EADDRINUSE, reason) from None
    service = P4RuntimeService(device, secured=identity is not None)
    p4r_grpc.add_P4RuntimeServicer_to_server(service, server.grpc)
    server.start()

    def stop() -> None:
        device.on_packet_in(None)
        service.stop()
        server.stop(_STOP_GRACE_S)
        threads.shutdown(wait=False, cancel_futures=True)

    return RunningServer(f"{address.rpartition(':')[0]}:{server.port}", server.port, stop)


#: Seconds that each update adds to a batch's time of arrival, so that short batches pass long ones.
_UPDATE_DELAY_S = 0.5e-3


class RequestQueue:
    """A queue of calls in the order of arrival, except that a short batch passes a long one that waits.

    Each waiting call holds a thread of the server, so their number is limited. If it is exceeded, the last
    call in the queue is refused: the newest, or a longer batch that it passes.
    """

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._changed = Condition()
        self._waiting: list[tuple[float, int]] = []
        self._serial = count()
        self._busy = False

    @contextmanager
    def turn(self, call: grpc.ServicerContext, updates: int = 0) -> Iterator[None]:
        """Wait in the queue, then run the body alone.

        Raises RequestError: CANCELLED if the call ends while it waits, RESOURCE_EXHAUSTED if too many wait.
        """
        call.add_callback(self._notify_waiting)
        with self._changed:
            rank = (monotonic() + updates * _UPDATE_DELAY_S, next(self._serial))
            insort(self._waiting, rank)
            if len(self._waiting) > self._most_waiting:
                self._waiting.pop()
                self._changed.notify_all()
            self._changed.wait_for(
                lambda: (
                    not call.is_active()
                    or rank not in self._waiting
                    or (not self._busy and self._waiting[0] == rank)
                )
            )
            if rank not in self._waiting:
                raise status.exhausted(
                    f"{self._most_waiting} requests wait for their turn already, and nothing was done; "
                    "await answers before you send more"
                )
            self._waiting.remove(rank)
            if not call.is_active():
                self._changed.notify_all()
                raise status.RequestError(
                    status.Code.CANCELLED, "the call ended before its turn; nothing was done"
                )
            self._busy = True
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _notify_waiting(self) -> None:
        with self._changed:
            self._changed.notify_all()

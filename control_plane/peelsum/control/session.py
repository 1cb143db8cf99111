"""A P4Runtime session with one switch: requests, arbitration and leases on jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NoReturn, TypeVar

import grpc
from finsy.p4entity import P4Entity, P4TableEntry, P4TableMatch
from finsy.p4schema import P4Schema
from finsy.pbutil import from_text
from finsy.proto import U128, p4i, p4r, p4r_grpc
from google.protobuf import text_format

from peelsum.control.errors import (
    ControlError,
    LeaseHeldError,
    NotPrimaryError,
    SwitchError,
    UnsupportedError,
    holder_in,
    switch_error,
)
from peelsum.control.stream import StreamChannel
from peelsum.reading import check_regular
from peelsum.tls import TlsError, TlsIdentity
from peelsum.tls.grpc_ends import open_channel
from peelsum.wire import count_lanes

#: The time limit for loading a pipeline, which a slow machine compiles for minutes.
_PIPELINE_TIMEOUT_S = 600.0
_BATCH = 256
#: Seconds between two bids of a controller that waits until there is no primary.
_BID_INTERVAL_S = 0.1
#: Seconds of waiting for another controller after which a warning names it.
_WARN_AFTER_S = 1.0
_log = logging.getLogger("peelsum")
#: Seconds that a switch may take to notice that the previous holder of a lease has ended.
_RELEASE_S = 10.0
#: Seconds before a Write is repeated that the switch rejected because it had too many calls.
_RETRY_S = 0.05
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_metadata_size", 64 << 10),
    # gRPC reconnects a shared connection only after a growing delay; a session must reconnect immediately.
    ("grpc.use_local_subchannel_pool", 1),
)
_Get = p4r.GetForwardingPipelineConfigRequest
_Set = p4r.SetForwardingPipelineConfigRequest
_Stream = TypeVar("_Stream")


class Session:
    """A connection to one switch, as a context manager. It starts as a backup."""

    #: For error messages: the API, and the command that starts the switch's server.
    api, started_by = "P4Runtime", "`peelsum switch run`"

    def __init__(
        self,
        address: str,
        device_id: int = 1,
        *,
        timeout_s: float,
        connect_s: float | None = None,
        identity: TlsIdentity | None = None,
    ) -> None:
        """Connect as a backup, and read the running pipeline.

        timeout_s: the time limit of each response, except to loading a pipeline.
        connect_s: the time limit of the connection, by default the same.
        identity: this controller's certificate; None for a switch on loopback, without TLS.
        Raises SwitchError if nothing answers, or one end rejects the other's certificate.
        """
        #: The address of the P4Runtime server, host:port.
        self.address = address
        #: The running pipeline, as of the last read; None if the switch has none.
        self.schema: P4Schema | None = None
        self._device_id = device_id
        self._timeout_s = timeout_s
        self._cookie = 0
        self._stream: StreamChannel | None = None
        #: The election id of a primary; 0 for a backup, whose writes the switch refuses.
        self._election_id = 0
        self._leases: dict[int, StreamChannel] = {}
        connect_s = timeout_s if connect_s is None else connect_s
        try:
            self._channel = open_channel("switch", address, identity, _OPTIONS, connect_s)
        except TlsError as error:
            raise SwitchError(str(error)) from None
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        try:
            self._await_answer(connect_s, "" if identity else " (with TLS there, give --tls here)")
            self.refresh()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all streams, which ends the role of primary and all leases, and the connection."""
        self.become_backup()
        for job_id in list(self._leases):
            self.release_lease(job_id)
        self._channel.close()

    # Primary and backup

    @property
    def is_primary(self) -> bool:
        """Whether `become_primary` succeeded and `become_backup` was not called since."""
        return self._stream is not None

    @property
    def stream(self) -> StreamChannel:
        """The stream of a primary. Raises SwitchError for a backup."""
        if self._stream is None:
            raise SwitchError(f"switch: not the primary of {self.address}; become it first")
        return self._stream

    def become_primary(self, election_id: int = 1, *, patience_s: float = 0.0) -> None:
        """Become the primary, and read the running pipeline.

        Raises NotPrimaryError if another controller is still the primary after `patience_s` seconds,
        SwitchError if the switch does not answer.
        """
        if election_id <= 0:
            raise ControlError(f"election_id: {election_id}: must be 1 or more")
        self.become_backup()
        self._stream = self._open_elected_stream(
            "", lambda stream: stream.become_primary(election_id, self._timeout_s), patience_s
        )
        self._election_id = self._stream.election_id
        self.refresh()

    def become_backup(self) -> None:
        """Give up the role of primary."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._election_id = None, 0

    def has_primary(self) -> bool:
        """Return whether the switch has a primary, this controller or another. Raises SwitchError."""
        stream = StreamChannel(self._stub, self.address, self._device_id)
        try:
            return stream.sees_primary(self._timeout_s)
        finally:
            stream.close()

    def check_primary(self) -> None:
        """Raise SwitchError if the switch has reported that this controller is no longer the primary."""
        while self.stream.next_packet(deadline=0.0) is not None:
            pass

    def _open_elected_stream(
        self, role: str, bid: Callable[[StreamChannel], None], patience_s: float
    ) -> StreamChannel:
        """Open a stream in a role, and bid until it is that role's primary; return the stream.

        bid: sends a bid on a stream, and raises NotPrimaryError if another stream is the primary. The error
        is raised if that is still so after `patience_s` seconds; other errors are raised immediately.
        """

        def attempt() -> StreamChannel:
            stream = StreamChannel(self._stub, self.address, self._device_id, role)
            try:
                bid(stream)
            except BaseException:
                stream.close()
                raise
            return stream

        return elected(attempt, patience_s)

    # Leases on jobs

    def acquire_lease(self, job_id: int) -> None:
        """Acquire the lease on a job, by becoming the primary of a role that is named after the job.

        The lease lasts until `release_lease`, `close` or the end of this process. On a switch without roles,
        such as BMv2, do nothing. Raises LeaseHeldError if another controller holds the lease, SwitchError if
        the switch does not answer.
        """
        if job_id in self._leases:
            return
        role = f"peelsum job {job_id}"
        try:
            self._leases[job_id] = self._open_elected_stream(
                role, lambda stream: stream.acquire_lease(self._timeout_s), _RELEASE_S
            )
        except NotPrimaryError as error:
            holder = holder_in(error.reason) or "another controller"
            raise LeaseHeldError(
                f"job.id: {job_id}: {holder} holds this job at {self.address}; end that `peelsum job serve` "
                "or `job admit --hold`, or choose another job.id"
            ) from None
        except UnsupportedError:
            pass

    def release_lease(self, job_id: int) -> None:
        """Release the lease on a job, if this session holds it."""
        if stream := self._leases.pop(job_id, None):
            stream.close()

    def check_lease_is_free(self, job_id: int) -> None:
        """Raise LeaseHeldError if another controller holds the lease on a job."""
        if job_id not in self._leases:
            self.acquire_lease(job_id)
            self.release_lease(job_id)

    def check_leases(self) -> None:
        """Raise SwitchError if the switch has reported that this controller has lost one of its leases."""
        for stream in self._leases.values():
            while stream.next_packet(deadline=0.0) is not None:
                pass

    # Pipeline

    def runs(self, pipeline: P4Schema) -> bool:
        """Return whether the switch runs this pipeline, with the same P4Info and the same cookie."""
        return (
            self.schema is not None
            and self.schema.p4info == pipeline.p4info
            and self._cookie == pipeline.p4cookie
        )

    def commit(self, pipeline: P4Schema) -> None:
        """Load a pipeline, which resets tables and registers. Raises SwitchError."""
        request = _Set(
            device_id=self._device_id,
            election_id=U128.encode(self._election_id),
            action=_Set.VERIFY_AND_COMMIT,
            config=pipeline.get_pipeline_config(),
        )
        try:
            self._stub.SetForwardingPipelineConfig(request, timeout=_PIPELINE_TIMEOUT_S)
        except grpc.RpcError as error:
            self._raise(error, "loading the pipeline")
        self.schema, self._cookie = pipeline, pipeline.p4cookie

    def running_schema(self) -> P4Schema:
        """Return the running pipeline. Raises SwitchError if the switch has none."""
        if self.schema is None:
            raise SwitchError(f"switch: {self.address} runs no pipeline; load one first")
        return self.schema

    def _await_answer(self, limit_s: float, hint: str) -> None:
        """Wait until the switch answers a call. Raises SwitchError, with the hint, if it does not.

        `grpc.channel_ready_future` would watch the connectivity: closing such a channel takes 0.2 s.
        """
        try:
            self._stub.Capabilities(p4r.CapabilitiesRequest(), timeout=limit_s, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                raise SwitchError(
                    f"switch: nothing answers {self.api} at {self.address}; is {self.started_by} running "
                    f"there?{hint}"
                ) from None  # any other status is an answer

    def refresh(self) -> None:
        """Read the running pipeline's P4Info and cookie. Raises SwitchError if the switch does not answer."""
        request = _Get(device_id=self._device_id, response_type=_Get.P4INFO_AND_COOKIE)
        try:
            response = self._stub.GetForwardingPipelineConfig(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            self.schema = None
            if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
                self._raise(error, "reading the pipeline")
            return
        p4info, self._cookie = response.config.p4info, response.config.cookie.cookie
        if self.schema is None or self.schema.p4info != p4info:
            self.schema = P4Schema(p4info) if p4info.tables or self._cookie else None

    # Entities

    def write(self, updates: Sequence[Any]) -> None:
        """Apply updates in order: insertions (+entity), modifications (~entity) and deletions (-entity).

        A P4Runtime Update is sent unchanged. Raises SwitchError, which names the first update that failed or
        is invalid for the switch's program.
        """
        schema = self.running_schema()
        with schema_errors():
            encoded = [
                update if isinstance(update, p4r.Update) else update.encode_update(schema)
                for update in updates
            ]
        self.write_raw(encoded)

    def write_raw(self, updates: Sequence[Any]) -> None:
        """Send P4Runtime Updates in order. Raises SwitchError, which names the first that failed."""
        for start in range(0, len(updates), _BATCH):
            batch = updates[start : start + _BATCH]
            request = p4r.WriteRequest(
                device_id=self._device_id, election_id=U128.encode(self._election_id), updates=batch
            )
            deadline, sent = monotonic() + self._timeout_s, False
            while not sent:
                try:
                    self._stub.Write(request, timeout=self._timeout_s)
                    sent = True
                except grpc.RpcError as error:
                    # Without details of the updates, the switch rejected the call, as it has too many.
                    full = error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                    if not full or error.trailing_metadata() or monotonic() >= deadline:
                        self._raise(error, "writing", batch)
                    sleep(_RETRY_S)

    def read(self, *selectors: P4Entity | p4r.Entity) -> list[p4r.Entity]:
        """Return the entities that `selectors` selects. Raises SwitchError."""
        schema = self.running_schema()
        with schema_errors():
            entities = [
                selector if isinstance(selector, p4r.Entity) else selector.encode(schema)
                for selector in selectors
            ]
        request = p4r.ReadRequest(device_id=self._device_id, entities=entities)
        matches: list[p4r.Entity] = []
        try:
            for response in self._stub.Read(request, timeout=self._timeout_s):
                matches += response.entities
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND:  # BMv2's answer if there is no multicast group
                self._raise(error, "reading")
        return matches

    def entries(self, table: str, match: Mapping[str, Any] | None = None) -> list[P4TableEntry]:
        """Return a table's rows, or only those with the key `match`. Raises SwitchError."""
        schema = self.running_schema()
        matches = self.read(P4TableEntry(table, match=P4TableMatch(match) if match else None))
        return [P4TableEntry.decode(entity, schema) for entity in matches]

    def _raise(self, error: grpc.RpcError, doing: str, updates: Sequence[Any] = ()) -> NoReturn:
        raise switch_error(
            error, self.address, doing, election_id=self._election_id, updates=updates
        ) from None


def elected(bid: Callable[[], _Stream], patience_s: float) -> _Stream:
    """Call `bid` until it raises no NotPrimaryError, or until it still does after `patience_s` seconds."""
    began, warned = monotonic(), False
    while True:
        try:
            return bid()
        except NotPrimaryError as error:
            waited_s = monotonic() - began
            if waited_s >= patience_s:
                raise
            if waited_s >= _WARN_AFTER_S and not warned:
                warned = True
                _log.warning("%s; waiting up to %g s for its end", str(error).partition(";")[0], patience_s)
        sleep(_BID_INTERVAL_S)


@contextmanager
def schema_errors() -> Iterator[None]:
    """Translate an error of finsy: an entity does not fit the switch's program."""
    try:
        yield
    except ValueError as error:
        raise SwitchError(
            f"switch: its program does not accept this: {error}; correct the value, or load this version's "
            "pipeline"
        ) from error


def pipeline_schema(json_path: Path, p4info_path: Path) -> P4Schema:
    """Read a compiled pipeline and its P4Info. Raises ControlError if a file is unusable."""
    try:
        for path in (json_path, p4info_path):
            check_regular(path)
        program = json_path.read_bytes()
        return _parsed(p4info_path.read_text("utf-8"), program)
    except OSError as error:
        command = "peelsum switch compile" + " --tofino" * (json_path.suffix == ".bin")
        raise ControlError(f"pipeline: {error.filename}: {error.strerror}; run `{command}`") from None
    except (text_format.ParseError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ControlError(
            f"pipeline: {p4info_path}: cannot be read as P4Info ({reason}); rebuild it"
        ) from None


@lru_cache(maxsize=16)
def _parsed(p4info: str, program: bytes) -> P4Schema:
    """Parse P4Info, which takes up to 0.1 s, once for each pipeline."""
    return P4Schema(from_text(p4info, p4i.P4Info), program)


def lanes_and_slots(session: Session) -> tuple[int, int]:
    """Return the 32-bit values per packet, and the number of slots, of the running pipeline.

    Raises SwitchError if there is no pipeline, or another program's.
    """
    lanes, slots = lanes_and_slots_of(session.running_schema())
    if not lanes:
        raise SwitchError(f"switch: the pipeline of {session.address} is not peelsum's; load that first")
    return lanes, slots


@lru_cache(maxsize=16)
def lanes_and_slots_of(schema: P4Schema) -> tuple[int, int]:
    """Return the 32-bit values per packet, and the number of slots, of a pipeline; 0 lanes of another's."""
    sizes = {register.name: register.size for register in schema.registers}
    # On a Tofino, each lane's register is in a P4 control of its own, with the name `sums`.
    lanes = count_lanes([name.removesuffix(".sums") for name in sizes])
    return lanes, min(sizes.values(), default=0)

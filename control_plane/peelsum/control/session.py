"""A P4Runtime session with one switch: requests, and the role of primary or backup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NoReturn

import grpc
from finsy.p4entity import P4Entity, P4TableEntry, P4TableMatch
from finsy.p4schema import P4Schema
from finsy.proto import U128, p4r, p4r_grpc
from google.protobuf import text_format

from peelsum.control.errors import (
    ControlError,
    HeldError,
    NotPrimaryError,
    SwitchError,
    UnsupportedError,
    translated,
)
from peelsum.control.stream import Stream
from peelsum.tls import Identity, TlsError
from peelsum.tls.grpc_ends import open_channel
from peelsum.wire import lanes_in

#: A switch may compile a pipeline for minutes, on a slow machine, before it responds.
_PIPELINE_TIMEOUT_S = 600.0
_BATCH = 256
#: Pause between two bids of a controller that waits for the primary to leave.
_BID_EVERY_S = 0.1
#: How long a switch may take to notice that a job's last holder has left.
_RELEASE_S = 10.0
#: Pause before a Write that found no room is sent again.
_AGAIN_S = 0.05
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_metadata_size", 64 << 10),
    # gRPC reconnects a shared connection only after a growing pause; a session must reconnect at once.
    ("grpc.use_local_subchannel_pool", 1),
)
_Get = p4r.GetForwardingPipelineConfigRequest
_Set = p4r.SetForwardingPipelineConfigRequest


class Session:
    """A connection to one switch, as a context manager. It starts as a backup."""

    #: The API by which the switch is asked, and how its server is started.
    api, started_by = "P4Runtime", "`peelsum switch run`"

    def __init__(
        self,
        address: str,
        device_id: int = 1,
        *,
        timeout_s: float,
        connect_s: float | None = None,
        identity: Identity | None = None,
    ) -> None:
        """Connect as a backup. Raises SwitchError if nothing answers, or one end refuses the other.

        timeout_s: seconds that the switch has for each response, except to a new pipeline. connect_s: for the
        connection; by default the same.
        identity: this controller's certificate, without which only switches on loopback are talked to.
        """
        #: The P4Runtime server, host:port.
        self.address = address
        self.schema = None
        self._device_id = device_id
        self._timeout_s = timeout_s
        self._cookie = 0
        self._stream: Stream | None = None
        self._holds: dict[int, Stream] = {}
        connect_s = timeout_s if connect_s is None else connect_s
        try:
            self._channel = open_channel("switch", address, identity, _OPTIONS, connect_s)
        except TlsError as error:
            raise SwitchError(str(error)) from None
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        try:
            self._await_channel(connect_s, " (with TLS there, give --tls here)" if identity is None else "")
            self._learn_schema()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the streams and the connection."""
        self.become_backup()
        for job_id in list(self._holds):
            self.release(job_id)
        self._channel.close()

    @property
    def schema(self) -> P4Schema | None:
        """The running pipeline; None if the switch has none."""
        return self._schema

    @schema.setter
    def schema(self, schema: P4Schema | None) -> None:
        self._schema = schema
        registers = list(schema.registers) if schema else []
        # On a Tofino, a lane's register stands in a control of its own.
        self._lanes = lanes_in(register.name.removesuffix(".sums") for register in registers)
        self._slots = min((register.size for register in registers), default=0)

    # Primary and backup

    @property
    def is_primary(self) -> bool:
        """Whether `become_primary` succeeded and `become_backup` was not called since."""
        return self._stream is not None

    @property
    def stream(self) -> Stream:
        """The primary's stream. Raises SwitchError for a backup."""
        if self._stream is None:
            raise SwitchError(f"switch: not the primary of {self.address}; become it first")
        return self._stream

    @property
    def _election_id(self) -> int:
        """The primary's election id; 0 for a backup, whose writes the switch refuses."""
        return 0 if self._stream is None else self._stream.election_id

    def become_primary(self, election_id: int = 1, *, patience_s: float = 0.0) -> None:
        """Become the primary, and read which pipeline the switch runs now.

        Raises NotPrimaryError if another controller still is after `patience_s`, SwitchError if the switch
        is gone.
        """
        if election_id <= 0:
            raise ControlError(f"election_id: {election_id}: must be 1 or more")
        self.become_backup()
        self._stream = self._elected(
            "", lambda stream: stream.become_primary(election_id, self._timeout_s), patience_s
        )
        self._learn_schema()

    def become_backup(self) -> None:
        """Leave the role of primary to other controllers."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    def has_primary(self) -> bool:
        """Return whether the switch has a primary, be it this controller or another. Raises SwitchError."""
        stream = Stream(self._stub, self.address, self._device_id)
        try:
            return stream.sees_primary(self._timeout_s)
        finally:
            stream.close()

    def check_primary(self) -> None:
        """Raise SwitchError if this controller is no longer the primary, as far as the switch has told."""
        while self.stream.next_packet(deadline=0.0) is not None:
            pass

    def _elected(self, role: str, bid: Callable[[Stream], None], patience_s: float) -> Stream:
        """Open a stream of a role and bid on it until it is the primary; return it.

        Raises NotPrimaryError if another is the primary for longer than `patience_s`, other errors at once.
        """
        deadline = monotonic() + patience_s
        while True:
            stream = Stream(self._stub, self.address, self._device_id, role)
            try:
                bid(stream)
                return stream
            except BaseException as error:
                stream.close()
                if not isinstance(error, NotPrimaryError) or monotonic() >= deadline:
                    raise
            sleep(_BID_EVERY_S)

    # Jobs that are held

    def hold(self, job_id: int) -> None:
        """Hold a job until `release` or `close`, as the primary of a role with its number.

        The switch also releases it when this process ends. On a switch without roles, such as BMv2, nothing
        happens. Raises HeldError if another controller holds the job, SwitchError if the switch is gone.
        """
        if job_id in self._holds:
            return
        role = f"peelsum job {job_id}"
        try:
            self._holds[job_id] = self._elected(role, lambda stream: stream.hold(self._timeout_s), _RELEASE_S)
        except NotPrimaryError as error:
            holder = error.reason.partition(", of ")[2].partition(";")[0] or "another controller"
            raise HeldError(
                f"job.id: {job_id}: {holder} holds this job at {self.address}; end that `peelsum job serve` "
                "or `job admit --hold`, or choose another job.id"
            ) from None
        except UnsupportedError:
            pass

    def release(self, job_id: int) -> None:
        """Stop holding a job."""
        if stream := self._holds.pop(job_id, None):
            stream.close()

    def check_unheld(self, job_id: int) -> None:
        """Raise HeldError if another controller holds a job."""
        if job_id not in self._holds:
            self.hold(job_id)
            self.release(job_id)

    def check_holds(self) -> None:
        """Raise SwitchError if the switch has reported that this controller lost a job that it held."""
        for stream in self._holds.values():
            while stream.next_packet(deadline=0.0) is not None:
                pass

    def _await_channel(self, timeout_s: float, hint: str) -> None:
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            raise SwitchError(
                f"switch: nothing answers {self.api} at {self.address}; is {self.started_by} running "
                f"there?{hint}"
            ) from None

    # Pipeline

    def runs(self, wanted: P4Schema) -> bool:
        """Return whether the switch runs this pipeline: the same P4Info and the same cookie."""
        return (
            self.schema is not None
            and self.schema.p4info == wanted.p4info
            and self._cookie == wanted.p4cookie
        )

    def commit(self, wanted: P4Schema) -> None:
        """Load a pipeline; tables and registers are then in their initial state. Raises SwitchError."""
        request = _Set(
            device_id=self._device_id,
            election_id=U128.encode(self._election_id),
            action=_Set.VERIFY_AND_COMMIT,
            config=wanted.get_pipeline_config(),
        )
        try:
            self._stub.SetForwardingPipelineConfig(request, timeout=_PIPELINE_TIMEOUT_S)
        except grpc.RpcError as error:
            self._raise(error, "loading the pipeline")
        self.schema, self._cookie = wanted, wanted.p4cookie

    def refresh(self) -> None:
        """Read which pipeline the switch runs now. Raises SwitchError if the switch is gone."""
        self._learn_schema()

    def loaded(self) -> P4Schema:
        """Return the running pipeline. Raises SwitchError if the switch has none."""
        if self.schema is None:
            raise SwitchError(f"switch: {self.address} runs no pipeline; load one first")
        return self.schema

    def _learn_schema(self) -> None:
        self.schema, self._cookie = None, 0
        request = _Get(device_id=self._device_id, response_type=_Get.P4INFO_AND_COOKIE)
        try:
            response = self._stub.GetForwardingPipelineConfig(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                return
            self._raise(error, "reading the pipeline")
        self._cookie = response.config.cookie.cookie
        if response.config.p4info.tables:
            self.schema = P4Schema(response.config.p4info)

    # Entities

    def write(self, updates: Sequence[Any]) -> None:
        """Insert (+), modify (~) or delete (-) entities, in order; P4Runtime's Updates are sent as they are.

        Raises SwitchError naming the first update that fails, or what the switch's program does not take.
        """
        schema = self.loaded()
        with for_program():
            encoded = [
                update if isinstance(update, p4r.Update) else update.encode_update(schema)
                for update in updates
            ]
        self.write_raw(encoded)

    def write_raw(self, updates: Sequence[Any]) -> None:
        """Send P4Runtime's Updates, in order. Raises SwitchError naming the first that fails."""
        for start in range(0, len(updates), _BATCH):
            batch = updates[start : start + _BATCH]
            request = p4r.WriteRequest(
                device_id=self._device_id, election_id=U128.encode(self._election_id), updates=batch
            )
            self._send(request, batch)

    def _send(self, request: p4r.WriteRequest, updates: Sequence[Any]) -> None:
        """Send a Write, and again while the switch has no room for the call: it has done nothing then."""
        deadline = monotonic() + self._timeout_s
        while True:
            try:
                self._stub.Write(request, timeout=self._timeout_s)
                return
            except grpc.RpcError as error:
                full = error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and not error.trailing_metadata()
                if not full or monotonic() >= deadline:
                    self._raise(error, "writing", updates)
                sleep(_AGAIN_S)

    def read(self, *wanted: P4Entity) -> list[p4r.Entity]:
        """Return the entities that `wanted` selects. Raises SwitchError."""
        schema = self.loaded()
        with for_program():
            entities = [entity.encode(schema) for entity in wanted]
        return self.read_encoded(*entities)

    def read_encoded(self, *entities: p4r.Entity) -> list[p4r.Entity]:
        """Return the entities that `entities` select, both as P4Runtime's messages. Raises SwitchError."""
        request = p4r.ReadRequest(device_id=self._device_id, entities=entities)
        found: list[p4r.Entity] = []
        try:
            for response in self._stub.Read(request, timeout=self._timeout_s):
                found += response.entities
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND:  # what BMv2 says of a missing multicast group
                self._raise(error, "reading")
        return found

    def entries(self, table: str, match: Mapping[str, Any] | None = None) -> list[P4TableEntry]:
        """Return a table's rows, or those with one key. Raises SwitchError."""
        schema = self.loaded()
        found = self.read(P4TableEntry(table, match=P4TableMatch(match) if match else None))
        return [P4TableEntry.decode(entity, schema) for entity in found]

    def _raise(self, error: grpc.RpcError, doing: str, updates: Sequence[Any] = ()) -> NoReturn:
        raise translated(error, self.address, doing, election_id=self._election_id, updates=updates) from None


@contextmanager
def for_program() -> Iterator[None]:
    """Raise SwitchError for what the schema of the switch's program refuses in the body."""
    try:
        yield
    except ValueError as error:
        raise SwitchError(
            f"switch: its program does not take this: {error}; correct the value, or load this version's "
            "pipeline"
        ) from error


def pipeline_schema(json_path: Path, p4info_path: Path) -> P4Schema:
    """Return a compiled pipeline in the form that a session takes. Raises ControlError for unusable files."""
    try:
        return P4Schema(p4info_path, json_path.read_bytes())
    except OSError as error:
        raise ControlError(
            f"pipeline: {error.filename}: {error.strerror}; run `peelsum switch compile`"
        ) from None
    except (text_format.ParseError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ControlError(
            f"pipeline: {p4info_path}: cannot be read as P4Info ({reason}); rebuild it"
        ) from None


def peelsum_lanes(session: Session) -> int:
    """Return the pipeline's 32-bit values per packet; 0 if the pipeline is not peelsum's.

    Raises SwitchError if the switch has no pipeline.
    """
    session.loaded()
    return session._lanes


def lanes(session: Session) -> int:
    """Return the pipeline's 32-bit values per packet. Raises SwitchError if it is not peelsum's."""
    if not peelsum_lanes(session):
        raise SwitchError(f"switch: the pipeline of {session.address} is not peelsum's; load that first")
    return session._lanes


def slots(session: Session) -> int:
    """Return how many chunks the pipeline sums at once. Raises SwitchError if it is not peelsum's."""
    lanes(session)
    return session._slots

"""One P4Runtime session with one switch: requests, the stream, and errors in words.

Owns the gRPC channel and what goes wrong on it: nothing of gRPC gets past this module. Knows nothing of
jobs.
"""

from __future__ import annotations

import queue
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any, NoReturn

import grpc
from finsy.p4client import P4Error, P4RpcStatus
from finsy.p4entity import P4Entity, P4MulticastGroupEntry, P4TableEntry, P4TableMatch
from finsy.p4schema import P4Schema
from finsy.proto import U128, p4r, p4r_grpc, rpc_code
from google.protobuf import text_format

from peelsum.control.errors import ControlError, NotPrimaryError, RefusedError, SwitchError, UnsupportedError

#: A pipeline may take a target minutes to compile, on a slow machine, before it answers.
_PIPELINE_TIMEOUT_S = 600.0
_BATCH = 256
#: How often a controller that waits for another one to finish asks again.
_BID_EVERY_S = 0.1
_DETAILS_KEY = "grpc-status-details-bin"
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_metadata_size", 64 << 10),
    # A connection of its own: one that is shared with a session that lost its switch is tried again seldom.
    ("grpc.use_local_subchannel_pool", 1),
)
#: Targets word it differently, and use a code that says little.
_ELECTION_ID_TAKEN = re.compile(r"election id .*\b(exists|used)\b", re.IGNORECASE)
_Get = p4r.GetForwardingPipelineConfigRequest
_Set = p4r.SetForwardingPipelineConfigRequest


class Session:
    """A controller's connection. Close it, or use it as a context manager."""

    def __init__(self, address: str, device_id: int = 1, *, timeout_s: float = 10.0) -> None:
        """Connect, and look on until `become_primary`. Raises SwitchError if nobody answers.

        timeout_s: how long the switch may take for any answer but a pipeline's.
        """
        self.address = address
        self._device_id = device_id
        self._election_id = 0
        #: Whether `become_primary` succeeded and `become_backup` was not called since.
        self.is_primary = False
        self._timeout_s = timeout_s
        #: What the switch runs; None before a pipeline is there.
        self.schema: P4Schema | None = None
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._cookie = 0
        self._outgoing: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[p4r.StreamMessageResponse | SwitchError] = queue.SimpleQueue()
        try:
            self._await_channel()
            self._learn_schema()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stream and the connection."""
        self._outgoing.put(None)
        self._channel.close()

    def become_primary(self, election_id: int = 1, *, patience_s: float = 0.0) -> None:
        """Become the primary, and learn what the switch runs by now.

        Raises NotPrimaryError if another controller still is after `patience_s`, SwitchError if the switch
        has gone.
        """
        if election_id <= 0:
            raise ControlError(f"election_id: {election_id}: must be 1 or more")
        deadline = monotonic() + patience_s
        while True:
            self._election_id = election_id
            self._open_stream()
            try:
                self._become_primary()
                break
            except NotPrimaryError:
                self.become_backup()
                if monotonic() >= deadline:
                    raise
                sleep(_BID_EVERY_S)
        self.is_primary = True
        self._learn_schema()

    def become_backup(self) -> None:
        """Leave the switch to other controllers, and look on."""
        self.is_primary = False
        self._outgoing.put(None)

    # Connecting

    def _await_channel(self) -> None:
        try:
            grpc.channel_ready_future(self._channel).result(timeout=self._timeout_s)
        except grpc.FutureTimeoutError:
            raise SwitchError(
                f"switch: nothing answers P4Runtime at {self.address}; is `peelsum switch run` running there?"
            ) from None

    def _open_stream(self) -> None:
        self._outgoing, self._incoming = queue.SimpleQueue(), queue.SimpleQueue()
        calls: Iterator[p4r.StreamMessageResponse] = self._stub.StreamChannel(iter(self._outgoing.get, None))
        Thread(target=self._listen, args=(calls, self._incoming), daemon=True).start()

    def _listen(
        self,
        responses: Iterable[p4r.StreamMessageResponse],
        incoming: queue.SimpleQueue[p4r.StreamMessageResponse | SwitchError],
    ) -> None:
        try:
            for response in responses:
                incoming.put(response)
            incoming.put(SwitchError(f"switch: {self.address} ended the session; connect again"))
        except grpc.RpcError as error:
            incoming.put(self._translated(error, "in session"))

    def _become_primary(self) -> None:
        deadline = monotonic() + self._timeout_s
        self._bid()
        answer = self._next_arbitration(deadline)
        if answer.status.code == rpc_code.NOT_FOUND:
            # Nobody is the primary, but a greater election id was: take over where it left off.
            self._election_id = U128.decode(answer.election_id)
            self._bid()
            answer = self._next_arbitration(deadline)
        if answer.status.code != rpc_code.OK:
            raise self._not_primary(U128.decode(answer.election_id))

    def _bid(self) -> None:
        bid = p4r.MasterArbitrationUpdate(
            device_id=self._device_id, election_id=U128.encode(self._election_id)
        )
        self._outgoing.put(p4r.StreamMessageRequest(arbitration=bid))

    def _next_arbitration(self, deadline: float) -> p4r.MasterArbitrationUpdate:
        while True:
            message = self._next_message(deadline)
            if message is None:
                raise SwitchError(
                    f"switch: {self.address} does not answer arbitration; is it a P4Runtime switch?"
                )
            if message.WhichOneof("update") == "arbitration":
                return message.arbitration

    def _next_message(self, deadline: float) -> p4r.StreamMessageResponse | None:
        try:
            message = self._incoming.get(timeout=max(0.0, deadline - monotonic()))
        except queue.Empty:
            return None
        if isinstance(message, SwitchError):
            self._incoming.put(message)  # whoever asks next has to hear it too
            raise message
        return message

    def _learn_schema(self) -> None:
        self.schema, self._cookie = None, 0
        request = _Get(device_id=self._device_id, response_type=_Get.P4INFO_AND_COOKIE)
        try:
            answer = self._stub.GetForwardingPipelineConfig(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                return
            self._raise(error, "reading the pipeline")
        self._cookie = answer.config.cookie.cookie
        if answer.config.p4info.tables:
            self.schema = P4Schema(answer.config.p4info)

    # Requests

    def runs(self, wanted: P4Schema) -> bool:
        """Whether the switch runs exactly this pipeline: same P4Info, and the cookie it was sent with."""
        return (
            self.schema is not None
            and self.schema.p4info == wanted.p4info
            and self._cookie == wanted.p4cookie
        )

    def commit(self, wanted: P4Schema) -> None:
        """Load a pipeline; the switch's state is its initial one afterwards. Raises SwitchError."""
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

    def write(self, updates: Sequence[P4TableEntry | P4MulticastGroupEntry]) -> None:
        """Insert (+), modify (~), delete (-) entities, in order. SwitchError names the first that fails."""
        schema = self.loaded()
        encoded = [update.encode_update(schema) for update in updates]
        for start in range(0, len(encoded), _BATCH):
            batch = encoded[start : start + _BATCH]
            request = p4r.WriteRequest(
                device_id=self._device_id, election_id=U128.encode(self._election_id), updates=batch
            )
            try:
                self._stub.Write(request, timeout=self._timeout_s)
            except grpc.RpcError as error:
                self._raise(error, "writing", batch)

    def read(self, *wanted: P4Entity) -> Iterator[p4r.Entity]:
        """All entities that `wanted` select, none where there are none. Raises SwitchError."""
        schema = self.loaded()
        request = p4r.ReadRequest(
            device_id=self._device_id, entities=[entity.encode(schema) for entity in wanted]
        )
        try:
            for response in self._stub.Read(request, timeout=self._timeout_s):
                yield from response.entities
        except grpc.RpcError as error:
            # BMv2 answers so for a group that is not there, where others answer with nothing.
            if error.code() != grpc.StatusCode.NOT_FOUND:
                self._raise(error, "reading")

    def entries(self, table: str, match: P4TableMatch | None = None) -> list[P4TableEntry]:
        """The rows of a table, or those of one key. Raises SwitchError."""
        schema = self.loaded()
        found = self.read(P4TableEntry(table, match=match))
        return [P4TableEntry.decode(entity, schema) for entity in found]

    def loaded(self) -> P4Schema:
        """The pipeline's schema. Raises SwitchError before there is a pipeline."""
        if self.schema is None:
            raise SwitchError(f"switch: {self.address} runs no pipeline; load one first")
        return self.schema

    # Packets

    def send_packet(self, frame: bytes) -> None:
        """A frame into the switch by its CPU port."""
        self._outgoing.put(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=frame)))

    def next_packet(self, deadline: float) -> bytes | None:
        """The next frame that leaves the switch by its CPU port; None if there is none by `deadline`.

        `deadline` is a reading of `time.monotonic`. Raises SwitchError if the switch refused a packet, or if
        another controller has taken over.
        """
        while (message := self._next_message(deadline)) is not None:
            match message.WhichOneof("update"):
                case "packet":
                    return message.packet.payload
                case "error":
                    raise SwitchError(f"switch: {self.address} refused a packet: {message.error.message}")
                case "arbitration" if message.arbitration.status.code != rpc_code.OK:
                    raise SwitchError(f"switch: another controller took over {self.address}; connect again")
        return None

    # Errors

    def _raise(self, error: grpc.RpcError, doing: str, updates: Sequence[Any] = ()) -> NoReturn:
        raise self._translated(error, doing, updates) from None

    def _not_primary(self, election_id: int) -> NotPrimaryError:
        return NotPrimaryError(
            f"switch: another controller is in charge of {self.address} (election id {election_id}); "
            "let it finish, or stop it"
        )

    def _translated(self, error: Any, doing: str, updates: Sequence[Any] = ()) -> SwitchError:
        code: grpc.StatusCode = error.code()
        if code == grpc.StatusCode.UNAVAILABLE:
            return SwitchError(
                f"switch: lost the connection to {self.address} while {doing}; is it still running?"
            )
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return SwitchError(f"switch: {self.address} did not answer in time while {doing}; try again")
        if code == grpc.StatusCode.FAILED_PRECONDITION and doing == "reading":
            return SwitchError(f"switch: {self.address} runs no pipeline any more; load one first")
        reason = " ".join((error.details() or code.name).split())
        if _ELECTION_ID_TAKEN.search(reason):
            return self._not_primary(self._election_id)
        failed = _failed_updates(error)
        if failed:
            number, detail = next(iter(failed.items()))
            what = updates[number].entity.WhichOneof("entity") if number < len(updates) else "unknown"
            words = detail.message or repr(detail.canonical_code)
            return RefusedError(
                f"switch: {self.address} refused {doing}: update {number} ({what}): {words}", words
            )
        kind = UnsupportedError if code == grpc.StatusCode.UNIMPLEMENTED else SwitchError
        return kind(f"switch: {self.address} refused {doing}: {reason}")


def pipeline_schema(json_path: Path, p4info_path: Path) -> P4Schema:
    """A compiled pipeline as a session takes it. Raises ControlError where the files are not one."""
    try:
        return P4Schema(p4info_path, json_path.read_bytes())
    except OSError as error:
        raise ControlError(
            f"pipeline: {error.filename}: {error.strerror}; run `peelsum switch compile`"
        ) from None
    except (text_format.ParseError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ControlError(f"pipeline: {p4info_path}: is no P4Info ({reason}); rebuild it") from None


def _failed_updates(error: Any) -> dict[int, P4Error]:
    """What a Write says about each update that failed, by its place in the request."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            return P4RpcStatus.from_bytes(value).details
    return {}

"""Errors of requests, and their encoding: canonical codes, and details for each update."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

import grpc
from finsy.proto import p4r, rpc_status

from peelsum.logs import RateLimit
from peelsum.softswitch.errors import DuplicateEntry, EntryInUse, NoSuchEntry, SoftswitchError, TableFull

Code = grpc.StatusCode
#: Whether an update inserts, modifies or deletes an entity.
Change: TypeAlias = p4r.Update.Type.ValueType
#: Trailing metadata that carries a serialised google.rpc.Status, by gRPC's convention.
DETAILS_KEY = "grpc-status-details-bin"
#: Clients refuse trailing metadata beyond 8 KiB by default.
_DETAILS_LIMIT = 6 * 1024
#: Most updates with details; a detail without message takes about 40 bytes.
_MOST_DETAILS = 150
_LONGEST_MESSAGE = 500
ERROR_SPACE = "peelsum"

#: The codes of the switch's errors; INVALID_ARGUMENT for the others.
_SWITCH_CODES = {
    DuplicateEntry: Code.ALREADY_EXISTS,
    NoSuchEntry: Code.NOT_FOUND,
    TableFull: Code.RESOURCE_EXHAUSTED,
    EntryInUse: Code.FAILED_PRECONDITION,
}


_LOGGER = logging.getLogger(__name__)
_LOGGER.addFilter(RateLimit())


class RequestError(Exception):
    """A request, or one of its updates, failed. `message` is one line."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class BatchError(RequestError):
    """Some updates of a Write failed. `results` has an item per update: its error, or None."""

    def __init__(self, results: Sequence[RequestError | None]) -> None:
        failed = [result for result in results if result is not None]
        message = f"{len(failed)} of {len(results)} updates failed; first: {failed[0].message}"
        if len(results) > _MOST_DETAILS:
            message += f" (send at most {_MOST_DETAILS} updates at once to have the code of each)"
        super().__init__(Code.UNKNOWN, message)
        self.results = list(results)

    def details(self) -> bytes | None:
        """Return a serialised google.rpc.Status with a p4.v1.Error for each update.

        If it would be longer than clients accept, the errors have no messages. Return None if it would still
        be too long, since clients would then report another error.
        """
        if len(self.results) > _MOST_DETAILS:
            return None
        whole: bytes = self._status(messages=True).SerializeToString()
        brief: bytes = self._status(messages=False).SerializeToString()
        return whole if len(whole) <= _DETAILS_LIMIT else brief

    def _status(self, messages: bool) -> rpc_status.Status:
        status = rpc_status.Status(code=self.code.value[0], message=self.message[:_LONGEST_MESSAGE])
        for result in self.results:
            error = p4r.Error(canonical_code=(result.code if result else Code.OK).value[0])
            if result is not None and messages:
                error.message = result.message
                error.space = ERROR_SPACE
            status.details.add().Pack(error)
        return status


def invalid(message: str) -> RequestError:
    """Return the error of a request that contradicts the P4Info or the specification."""
    return RequestError(Code.INVALID_ARGUMENT, message)


def denied(message: str) -> RequestError:
    """Return the error of a request that this client may not make, or that nobody may."""
    return RequestError(Code.PERMISSION_DENIED, message)


def exhausted(message: str) -> RequestError:
    """Return the error of a request that exceeds a limit."""
    return RequestError(Code.RESOURCE_EXHAUSTED, message)


def unimplemented(what: str) -> RequestError:
    """Return the error of a valid request for something that the softswitch does not implement."""
    return RequestError(Code.UNIMPLEMENTED, f"{what}: the softswitch does not implement this")


def check_change(change: Change, exists: bool, what: str) -> None:
    """Raise RequestError for an insertion of what exists, or another change of what does not."""
    if change == p4r.Update.INSERT and exists:
        raise RequestError(Code.ALREADY_EXISTS, f"{what} exists; modify it instead")
    if change != p4r.Update.INSERT and not exists:
        raise RequestError(Code.NOT_FOUND, f"{what} does not exist; insert it first")


def check_modifies(change: Change, what: str) -> None:
    """Raise RequestError for an insertion or deletion of what always exists."""
    if change != p4r.Update.MODIFY:
        raise invalid(f"{what}: cannot be inserted or deleted; modify it")


def check_ports(ports: Iterable[int], known: Collection[int] | None, field: str = "") -> None:
    """Raise RequestError for a port that the switch does not have. known: its ports; None for any."""
    if known is None:
        return
    for port in ports:
        if port not in known:
            numbers = ", ".join(map(str, sorted(known)))
            raise invalid(f"{field}port {port} is not on this switch; use one of {numbers}")


def request_error(error: Exception) -> RequestError:
    """Return the RequestError of any error: a switch's gets P4Runtime's code, and a bug is logged."""
    if isinstance(error, RequestError):
        return error
    if not isinstance(error, SoftswitchError):
        _LOGGER.error("request failed by a bug", exc_info=error)
        return RequestError(Code.INTERNAL, f"{type(error).__name__}: {one_line(error)}")
    codes = (code for kind, code in _SWITCH_CODES.items() if isinstance(error, kind))
    return RequestError(next(codes, Code.INVALID_ARGUMENT), one_line(error))


def one_line(error: Exception) -> str:
    """Return the error's text without line breaks."""
    return " ".join(str(error).split())

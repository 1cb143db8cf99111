"""Errors of requests and their form on the wire: canonical codes and details per update."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic

import grpc
from finsy.proto import p4r, rpc_status

from peelsum.softswitch.errors import DuplicateEntry, InvalidEntry, NoSuchEntry, SoftswitchError, TableFull

Code = grpc.StatusCode
#: Log lines in so many seconds: a client that provokes errors cannot fill the disk.
MOST_LINES, WITHIN_S = 20, 60.0
#: Trailing metadata that carries a serialised google.rpc.Status, by gRPC's convention.
DETAILS_KEY = "grpc-status-details-bin"
#: Clients refuse trailing metadata beyond 8 KiB by default.
_DETAILS_LIMIT = 6 * 1024
#: A detail without message takes about 40 bytes.
_MOST_DETAILS = 150
_LONGEST_MESSAGE = 500
ERROR_SPACE = "peelsum"

_SWITCH_CODES: tuple[tuple[type[SoftswitchError], grpc.StatusCode], ...] = (
    (DuplicateEntry, Code.ALREADY_EXISTS),
    (NoSuchEntry, Code.NOT_FOUND),
    (TableFull, Code.RESOURCE_EXHAUSTED),
    (InvalidEntry, Code.INVALID_ARGUMENT),
)


class Seldom(logging.Filter):
    """Passes at most `MOST_LINES` records in `WITHIN_S` seconds; the next one says how many were lost."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._since, self._passed, self._lost = clock(), 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        now = self._clock()
        if now - self._since >= WITHIN_S:
            if self._lost:
                record.msg = f"{record.getMessage()} (before it, {self._lost} lines were not logged)"
                record.args = None
            self._since, self._passed, self._lost = now, 0, 0
        self._passed += 1
        if self._passed > MOST_LINES:
            self._lost += 1
        return self._passed <= MOST_LINES


_LOG = logging.getLogger(__name__)
_LOG.addFilter(Seldom())


class RequestError(Exception):
    """A request, or one of its updates, failed. `message` is one line."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class BatchError(RequestError):
    """Some updates of a Write failed; `outcomes` has one item per update, None if it succeeded."""

    def __init__(self, outcomes: Sequence[RequestError | None]) -> None:
        failed = [outcome for outcome in outcomes if outcome is not None]
        message = f"{len(failed)} of {len(outcomes)} updates failed; first: {failed[0].message}"
        if len(outcomes) > _MOST_DETAILS:
            message += f" (send at most {_MOST_DETAILS} updates at once to have the code of each)"
        super().__init__(Code.UNKNOWN, message)
        self.outcomes = list(outcomes)

    def details(self) -> bytes | None:
        """Return a serialised google.rpc.Status with a p4.v1.Error per update, without messages if too long.

        Return None if it is still longer than clients accept: they would report another error instead.
        """
        if len(self.outcomes) > _MOST_DETAILS:
            return None
        whole: bytes = self._status(messages=True).SerializeToString()
        brief: bytes = self._status(messages=False).SerializeToString()
        return whole if len(whole) <= _DETAILS_LIMIT else brief

    def _status(self, messages: bool) -> rpc_status.Status:
        status = rpc_status.Status(code=code_number(self.code), message=self.message[:_LONGEST_MESSAGE])
        for outcome in self.outcomes:
            error = p4r.Error(canonical_code=code_number(outcome.code if outcome else Code.OK))
            if outcome is not None and messages:
                error.message = outcome.message
                error.space = ERROR_SPACE
            status.details.add().Pack(error)
        return status


def code_number(code: grpc.StatusCode) -> int:
    """Return the number of a canonical code, as in google.rpc.Status."""
    number: int = code.value[0]
    return number


def invalid(message: str) -> RequestError:
    """Return the error of a request that contradicts the P4Info or the specification."""
    return RequestError(Code.INVALID_ARGUMENT, message)


def unimplemented(what: str) -> RequestError:
    """Return the error of a valid request for something that the softswitch does not implement."""
    return RequestError(Code.UNIMPLEMENTED, f"{what}: the softswitch does not implement this")


def from_switch_error(error: SoftswitchError) -> RequestError:
    """Return the RequestError of a switch's error, with P4Runtime's canonical code."""
    for kind, code in _SWITCH_CODES:
        if isinstance(error, kind):
            return RequestError(code, one_line(error))
    return RequestError(Code.INVALID_ARGUMENT, one_line(error))


def from_bug(error: Exception) -> RequestError:
    """Log an unexpected error and return a RequestError: only the request fails."""
    _LOG.error("request failed by a bug", exc_info=error)
    return RequestError(Code.INTERNAL, f"{type(error).__name__}: {one_line(error)}")


def one_line(error: Exception) -> str:
    """Return the error's text without line breaks."""
    return " ".join(str(error).split())

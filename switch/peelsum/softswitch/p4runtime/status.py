"""What the server answers when it cannot do as asked: canonical codes, per-update details.

Owns the shape of error statuses on the wire. Knows nothing of what was asked.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import grpc
from finsy.proto import p4r, rpc_status

from peelsum.softswitch.errors import DuplicateEntry, InvalidEntry, NoSuchEntry, SoftswitchError, TableFull

Code = grpc.StatusCode
_LOG = logging.getLogger(__name__)
#: Trailing metadata that carries a serialised google.rpc.Status, by gRPC's convention.
DETAILS_KEY = "grpc-status-details-bin"
#: Clients refuse trailing metadata beyond 8 KiB unless told otherwise.
_DETAILS_LIMIT = 6 * 1024
#: A detail without message takes about 40 bytes.
_MOST_DETAILS = 150
_LONGEST_MESSAGE = 500
ERROR_SPACE = "peelsum"

_TARGET_CODES: tuple[tuple[type[SoftswitchError], grpc.StatusCode], ...] = (
    (DuplicateEntry, Code.ALREADY_EXISTS),
    (NoSuchEntry, Code.NOT_FOUND),
    (TableFull, Code.RESOURCE_EXHAUSTED),
    (InvalidEntry, Code.INVALID_ARGUMENT),
)


class RequestError(Exception):
    """A request, or one update of it, that is answered with an error. `message` is one line."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class BatchError(RequestError):
    """A Write in which some updates failed; `outcomes` has one entry per update, None where it was done."""

    def __init__(self, outcomes: Sequence[RequestError | None]) -> None:
        failed = [outcome for outcome in outcomes if outcome is not None]
        message = f"{len(failed)} of {len(outcomes)} updates failed; first: {failed[0].message}"
        if len(outcomes) > _MOST_DETAILS:
            message += f" (send at most {_MOST_DETAILS} updates at once to have the code of each)"
        super().__init__(Code.UNKNOWN, message)
        self.outcomes = list(outcomes)

    def details(self) -> bytes | None:
        """A serialised google.rpc.Status with a p4.v1.Error per update, without messages if they are long.

        None where even that is more than clients take: they would see another error in place of this one.
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
    """The number of a canonical code, as google.rpc.Status holds it."""
    number: int = code.value[0]
    return number


def invalid(message: str) -> RequestError:
    """The request contradicts the P4Info or the specification."""
    return RequestError(Code.INVALID_ARGUMENT, message)


def unimplemented(what: str) -> RequestError:
    """The request is legal, and this target has no such thing."""
    return RequestError(Code.UNIMPLEMENTED, f"{what}: the embedded target does not implement this")


def from_target(error: SoftswitchError) -> RequestError:
    """The switch's own error, with the canonical code P4Runtime gives it."""
    for kind, code in _TARGET_CODES:
        if isinstance(error, kind):
            return RequestError(code, one_line(error))
    return RequestError(Code.INVALID_ARGUMENT, one_line(error))


def from_bug(error: Exception) -> RequestError:
    """An error nobody expected, so that it ends one request and not the server; logged for who repairs it."""
    _LOG.error("request failed by a bug", exc_info=error)
    return RequestError(Code.INTERNAL, f"{type(error).__name__}: {one_line(error)}")


def one_line(error: Exception) -> str:
    """The error's text without line breaks."""
    return " ".join(str(error).split())

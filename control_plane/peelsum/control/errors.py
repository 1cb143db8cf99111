"""The errors of the control plane, and the translation of gRPC errors. Every message is one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import grpc
from finsy.p4client import P4RpcStatus


class ControlError(Exception):
    """Base class of the control plane's errors."""


class DescriptionError(ControlError):
    """The job description is wrong. The message names file, field, value and remedy."""


class LeaseHeldError(DescriptionError):
    """Another controller holds the lease on the job."""


class SwitchError(ControlError):
    """The switch is unreachable, refused a request, or does not run the expected program."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        #: The switch's own error message; empty if it is not known.
        self.reason = reason


class NotPrimaryError(SwitchError):
    """Another controller is the switch's primary."""


class UpdateRefusedError(SwitchError):
    """The switch refused an update of a Write."""


class UnsupportedError(SwitchError):
    """The switch does not implement a request, as BMv2 does not implement reading registers."""


#: Switches use different messages for this, with an error code that has other meanings, too.
_ELECTION_ID_TAKEN = re.compile(r"election id .*\b(exists|used)\b", re.IGNORECASE)


def holder_in(reason: str) -> str:
    """Return the process and the address that a softswitch's refusal of an election id names; else ''."""
    return reason.partition(", of ")[2].partition(";")[0]


def not_primary(address: str, election_id: int, reason: str = "") -> NotPrimaryError:
    """Return the error for a switch whose primary is another controller, with this election id."""
    holder = holder_in(reason)
    return NotPrimaryError(
        f"switch: another controller is the primary of {address} (election id {election_id}"
        f"{', ' * bool(holder)}{holder}); "
        "let it finish, stop it, or ask it by --controller if it is a cluster's",
        reason,
    )


def switch_error(
    error: Any, address: str, doing: str, *, election_id: int, updates: Sequence[Any] = ()
) -> SwitchError:
    """Translate a gRPC error into a SwitchError.

    doing: the operation that failed, e.g. 'writing'. election_id: the one that this controller bid.
    updates: the updates of a failed Write.
    """
    code: grpc.StatusCode = error.code()
    if code == grpc.StatusCode.UNAVAILABLE:
        return SwitchError(f"switch: lost the connection to {address} while {doing}; is it still running?")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return SwitchError(f"switch: {address} did not answer in time while {doing}; try again")
    if code == grpc.StatusCode.FAILED_PRECONDITION and doing == "reading":
        return SwitchError(f"switch: {address} runs no pipeline any more; load one first")
    reason = " ".join((error.details() or code.name).split())
    if _ELECTION_ID_TAKEN.search(reason):
        return not_primary(address, election_id, reason)
    # The errors of a Write's failed updates, by their index in the request.
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if details is not None and (failed := P4RpcStatus.from_bytes(details).details):
        number, detail = next(iter(failed.items()))
        what = updates[number].entity.WhichOneof("entity") if number < len(updates) else "unknown"
        reason = detail.message or repr(detail.canonical_code)
        return UpdateRefusedError(
            f"switch: {address} refused {doing}: update {number} ({what}): {reason}", reason
        )
    # BMv2 does not say UNIMPLEMENTED of an entity that it does not know.
    is_unsupported = code == grpc.StatusCode.UNIMPLEMENTED or reason == "Incorrect entity type"
    kind = UnsupportedError if is_unsupported else SwitchError
    return kind(f"switch: {address} refused {doing}: {reason}")

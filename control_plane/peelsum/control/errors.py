"""The errors of the control plane, split by whose fault they are, and of gRPC translated to them.

Every message is one line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import grpc
from finsy.p4client import P4Error, P4RpcStatus


class ControlError(Exception):
    """Base class of the control plane's errors."""


class DescriptionError(ControlError):
    """The job description is wrong. The message names file, field, value and remedy."""


class HeldError(DescriptionError):
    """Another controller holds the job."""


class SwitchError(ControlError):
    """The switch cannot be reached, refused a request, or runs something else."""


class NotPrimaryError(SwitchError):
    """Another controller is the switch's primary."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        #: The switch's own words, if it gave any.
        self.reason = reason


class RefusedError(SwitchError):
    """The switch refused an update."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        #: The switch's own words.
        self.reason = reason


class UnsupportedError(SwitchError):
    """The switch does not implement a request, e.g. BMv2 reading registers."""


_DETAILS_KEY = "grpc-status-details-bin"
#: Switches word it differently, and use a code that says little.
_ELECTION_ID_TAKEN = re.compile(r"election id .*\b(exists|used)\b", re.IGNORECASE)


def not_primary(address: str, election_id: int, reason: str = "") -> NotPrimaryError:
    """Return the error that another controller, with this election id, is the switch's primary."""
    return NotPrimaryError(
        f"switch: another controller is the primary of {address} (election id {election_id}); "
        "let it finish, stop it, or ask it by --controller if it is a cluster's",
        reason,
    )


def translated(
    error: Any, address: str, doing: str, *, election_id: int, updates: Sequence[Any] = ()
) -> SwitchError:
    """Return the SwitchError for a gRPC error.

    doing: what failed, e.g. 'writing'; election_id: the one that this controller bid;
    updates: those of the failed Write.
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
    failed = _failed_updates(error)
    if failed:
        number, detail = next(iter(failed.items()))
        what = updates[number].entity.WhichOneof("entity") if number < len(updates) else "unknown"
        words = detail.message or repr(detail.canonical_code)
        return RefusedError(f"switch: {address} refused {doing}: update {number} ({what}): {words}", words)
    kind = UnsupportedError if code == grpc.StatusCode.UNIMPLEMENTED else SwitchError
    return kind(f"switch: {address} refused {doing}: {reason}")


def _failed_updates(error: Any) -> dict[int, P4Error]:
    """Return the errors of a Write's failed updates, by their index in the request."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            return P4RpcStatus.from_bytes(value).details
    return {}

"""Translate gRPC errors to SwitchError; no other module handles gRPC's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import grpc
from finsy.p4client import P4Error, P4RpcStatus

from peelsum.control.errors import NotPrimaryError, RefusedError, SwitchError, UnsupportedError

_DETAILS_KEY = "grpc-status-details-bin"
#: Switches word it differently, and use a code that says little.
_ELECTION_ID_TAKEN = re.compile(r"election id .*\b(exists|used)\b", re.IGNORECASE)


def not_primary(address: str, election_id: int) -> NotPrimaryError:
    """Return the error that another controller, with this election id, is the switch's primary."""
    return NotPrimaryError(
        f"switch: another controller is the primary of {address} (election id {election_id}); "
        "let it finish, stop it, or ask it by --controller if it is a cluster's"
    )


def nothing_there(error: Any) -> bool:
    """Return whether a Read failed only because its entities do not exist.

    BMv2 says so of a multicast group by the call's code, Stratum of rows and groups in the error's details.
    Other switches send an empty response.
    """
    parts = _failed_updates(error).values()
    if parts:
        return all(part.canonical_code.name == "NOT_FOUND" for part in parts)
    return bool(error.code() == grpc.StatusCode.NOT_FOUND)


def translated(
    error: Any, address: str, doing: str, *, election_id: int, updates: Sequence[Any] = ()
) -> SwitchError:
    """Return the SwitchError for a gRPC error.

    doing: what failed, e.g. 'writing'; election_id: the one that this controller bid;
    updates: the failed Write's.
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
        return not_primary(address, election_id)
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

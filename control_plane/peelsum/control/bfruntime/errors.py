"""Translate bf_switchd's refusals, from the errors of its calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import grpc
from finsy.proto import rpc_status

from peelsum.control.bfruntime.messages import Error
from peelsum.control.errors import RefusedError, SwitchError, UnsupportedError, translated

_DETAILS_KEY = "grpc-status-details-bin"
#: Text of bf_switchd with the code that gRPC has for a lost connection.
_FROM_SWITCH = re.compile(r"\b(unknown|for) client\b", re.IGNORECASE)
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def codes(error: Any) -> set[grpc.StatusCode]:
    """Return the codes of the failure: of the request's parts if the switch names them, or the call's."""
    parts = {_CODES[one.canonical_code] for one in _failures(error).values()}
    return parts or {error.code()}


def refused(error: Any, address: str, doing: str, updates: Sequence[Any] = ()) -> SwitchError:
    """Return the SwitchError for a gRPC error; `updates` are a failed Write's."""
    failures = _failures(error)
    words = " ".join((error.details() or "").split())
    if not failures and error.code() == grpc.StatusCode.UNAVAILABLE and _FROM_SWITCH.search(words):
        return SwitchError(f"switch: {address} refused {doing}: {words}; try again")
    if not failures:
        return translated(error, address, doing, election_id=0)
    number, first = next(iter(failures.items()))
    words = " ".join(first.message.split()) or _CODES[first.canonical_code].name
    if _CODES[first.canonical_code] == grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedError(f"switch: {address} refused {doing}: {words}")
    what = f"update {number} of {len(updates)}: " if updates else ""
    return RefusedError(f"switch: {address} refused {doing}: {what}{words}", words)


def _failures(error: Any) -> dict[int, Any]:
    """Return the errors of a request's parts, by their index."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            found = [Error.FromString(one.value) for one in rpc_status.Status.FromString(value).details]
            return {number: one for number, one in enumerate(found) if one.canonical_code}
    return {}

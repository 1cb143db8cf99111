"""The controller's gRPC calls, as both ends name and encode them: JSON objects, so no compiler is needed."""

from __future__ import annotations

import json
from typing import Any

#: The gRPC service.
SERVICE = "peelsum.Controller"
#: Bytes of the largest request and response.
LONGEST_REQUEST, LONGEST_RESPONSE = 1 << 20, 16 << 20


def encoded(values: dict[str, Any]) -> bytes:
    """Return an object as a message."""
    return json.dumps(values).encode()


def decoded(message: bytes) -> dict[str, Any]:
    """Return a message's object. Raises ValueError for anything else."""
    values = json.loads(message)
    if not isinstance(values, dict):
        raise ValueError("is not a JSON object")
    return values

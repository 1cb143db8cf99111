"""How fakes of switches say which parts of a call they refused."""

import grpc
from finsy.proto import rpc_status


def report(context, words, errors):
    """End the call with UNKNOWN, `words`, and all errors as its details, unless no error has a code."""
    if not any(one.canonical_code for one in errors):
        return
    status = rpc_status.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=words)
    for one in errors:
        status.details.add().Pack(one)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, words)

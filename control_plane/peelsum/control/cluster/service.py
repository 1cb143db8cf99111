"""Answers `peelsum job --controller` by gRPC: who may call what, and how errors are told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc

from peelsum.control.cluster.client import LONGEST_REQUEST, SERVICE, decoded, encoded
from peelsum.control.cluster.cluster import Cluster
from peelsum.control.cluster.store import BackupError
from peelsum.control.errors import ControlError
from peelsum.tls import Identity, Role, TlsError, caller_role, require_tls
from peelsum.tls.grpc_ends import LimitedServer

_CHANGERS, _READERS = (Role.OPERATOR,), (Role.OPERATOR, Role.VIEWER)
#: Calls at once; each holds a thread, and changes wait for one another.
_MOST_CALLS = 16
_STOP_GRACE_S = 0.5


class ControllerService:
    """A listening server for a cluster's controller, as a context manager."""

    def __init__(self, address: str, identity: Identity | None) -> None:
        """Listen at host:port. Raises ControlError if that is not possible, TlsError beyond loopback.

        identity: with one, clients need TLS and a certificate, whose role says what they may do.
        """
        require_tls("--listen", address.rpartition(":")[0], identity)
        self._threads = ThreadPoolExecutor(_MOST_CALLS, thread_name_prefix="controller")
        self._secured = identity is not None
        try:
            self._server = LimitedServer(
                address, identity, threads=self._threads, calls=_MOST_CALLS, message_bytes=LONGEST_REQUEST
            )
        except OSError:
            reason = f"--listen: {address}: cannot be listened on; free it or choose another"
            raise ControlError(reason) from None
        #: Where it listens, host:port.
        self.address = f"{address.rpartition(':')[0]}:{self._server.port}"

    def __enter__(self) -> ControllerService:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(_STOP_GRACE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def start(self, cluster: Cluster) -> None:
        """Answer for a cluster from now on."""
        one = grpc.unary_unary_rpc_method_handler
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Admit": one(self._answering(_CHANGERS, "admit", lambda asked: _admit(cluster, asked))),
            "Evict": one(self._answering(_CHANGERS, "evict", lambda asked: _evict(cluster, asked))),
            "List": one(self._answering(_READERS, "list", lambda asked: cluster.listed())),
        }
        service = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.grpc.add_generic_rpc_handlers((service,))
        self._server.start()

    def _answering(
        self, allowed: tuple[Role, ...], doing: str, answer: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def call(request: bytes, context: grpc.ServicerContext) -> bytes:
            self._require(context, allowed, doing)
            try:
                return encoded(answer(decoded(request)))
            except Exception as error:
                _abort(context, error)

        return call

    def _require(self, context: grpc.ServicerContext, allowed: tuple[Role, ...], doing: str) -> None:
        role = caller_role(context.peer()) if self._secured else allowed[0]
        if role not in allowed:
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"controller: {doing} needs a certificate of role {' or '.join(allowed)}; this client's has "
                f"role {role}",
            )


def _admit(cluster: Cluster, asked: dict[str, Any]) -> dict[str, Any]:
    text, source, token = (_text(asked, name) for name in ("description", "source", "token"))
    return cluster.admit(text, source or "job description", token)


def _evict(cluster: Cluster, asked: dict[str, Any]) -> dict[str, Any]:
    job_id = asked.get("job_id")
    if not isinstance(job_id, int) or isinstance(job_id, bool):
        raise ValueError(f"job_id: {job_id!r}: is not a number")
    return cluster.evict(job_id, _text(asked, "token"))


def _text(asked: dict[str, Any], name: str) -> str:
    value = asked.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name}: {value!r}: is not a text")
    return value


def _abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    match error:
        case BackupError():
            code = grpc.StatusCode.ABORTED
        case ControlError() | TlsError():
            code = grpc.StatusCode.FAILED_PRECONDITION
        case ValueError():
            code = grpc.StatusCode.INVALID_ARGUMENT
        case _:
            code = grpc.StatusCode.INTERNAL
    # Half a character, as in a file's name that is not UTF-8, cannot be sent.
    said = " ".join(str(error).split()).encode(errors="backslashreplace").decode()
    context.abort(code, said[:1000] or type(error).__name__)

"""Serve metrics by HTTP, to a limited number of clients at once. It needs `prometheus_client`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from threading import Lock, Thread
from typing import Any, Self

from peelsum.addresses import parse_address
from peelsum.metrics.catalogue import Metric, Values
from peelsum.tls import TlsIdentity, require_tls
from peelsum.tls.acceptor import MAX_PENDING, Acceptor

#: The most clients at once, and the seconds of silence after which a client's connection is closed.
MAX_CLIENTS, REQUEST_TIMEOUT_S = 64, 5.0
#: Reading of a request stops after so many bytes; the last read may add up to 4 KiB.
MAX_REQUEST_BYTES = 16 << 10


class MetricsError(Exception):
    """The address for metrics is invalid, or cannot be bound."""


def metrics_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, or PORT on loopback; return host and port. Raises MetricsError."""
    host, _, port = text.rpartition(":")
    try:
        return parse_address(f"{host or '127.0.0.1'}:{port}", example="127.0.0.1:9561")
    except ValueError as error:
        raise MetricsError(f"metrics: {text!r}: {error}, or only the port") from None


class MetricsServer:
    """Serves `/metrics` in threads of its own until `close`. A context manager."""

    def __init__(
        self,
        address: tuple[str, int],
        metrics: Sequence[Metric],
        read: Callable[[], Values],
        identity: TlsIdentity | None = None,
    ) -> None:
        """Serve from now on.

        address: host and port; port 0 binds a free port. read: returns the current values; the server's
        threads call it. identity: if given, clients need TLS and a certificate, of any role.
        Raises MetricsError if the address cannot be bound, TlsError beyond loopback without identity.
        """
        from prometheus_client import CollectorRegistry

        require_tls("metrics", address[0], identity)
        #: The source of the metrics that the handlers send.
        self.registry = CollectorRegistry()
        self.registry.register(_Collector(metrics, read))
        # Whether each connection has sent a request; the oldest connection first.
        self._clients: dict[socket.socket, bool] = {}
        self._lock = Lock()
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            listening = socket.create_server(address, family=family, backlog=MAX_PENDING)
        except OSError as error:
            host, port = address
            reason = str(error.strerror).partition(" (")[0]
            raise MetricsError(f"metrics: {host}:{port}: {reason}; choose another") from None
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        scheme = "http" if identity is None else "https"
        #: The URL of the metrics.
        self.url = f"{scheme}://{host}:{listening.getsockname()[1]}/metrics"
        context = None if identity is None else identity.context(server=True)
        self._acceptor = Acceptor(listening, self._serve, context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._acceptor.close()

    def _serve(self, connection: socket.socket) -> None:
        """Take over an accepted connection: handle it in a new thread, or close it if there are too many."""
        with self._lock:
            if len(self._clients) >= MAX_CLIENTS and not self._make_room():
                connection.close()
                return
            self._clients[connection] = False
        Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _make_room(self) -> bool:
        """Close the oldest connection without a request, so that idle ones do not keep scrapers out.

        Return whether there was one.
        """
        silent = next((client for client, asked in self._clients.items() if not asked), None)
        if silent is None:
            return False
        del self._clients[silent]
        with suppress(OSError):
            socket.socket.shutdown(silent, socket.SHUT_RDWR)  # its thread then closes it
        return True

    def _handle(self, connection: socket.socket) -> None:
        """Handle the request of a connection, and close the connection."""
        connection.settimeout(REQUEST_TIMEOUT_S)
        try:
            with suppress(OSError):  # the client has closed the connection, or sends nothing in time
                _Handler(connection, None, self)  # type: ignore[arg-type]  # no method here uses the address
        finally:
            with self._lock:
                self._clients.pop(connection, None)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            connection.close()

    def mark_requested(self, connection: socket.socket) -> None:
        """Record that a client has sent a request, so that its connection is kept until the response."""
        with self._lock:
            if connection in self._clients:
                self._clients[connection] = True


class _Collector:
    """Passes the current values to prometheus_client whenever metrics are requested."""

    def __init__(self, metrics: Sequence[Metric], read: Callable[[], Values]) -> None:
        self._metrics, self._read = metrics, read

    def describe(self) -> list[Any]:
        """Return nothing. Otherwise the registry would call `collect` to check for duplicate names."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield each metric with its current samples, as prometheus_client's metric families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        values = self._read()
        for metric in self._metrics:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in values.get(metric.name, {}).items():
                family.add_metric(labels, value)
            yield family


class _Handler(BaseHTTPRequestHandler):
    """Answers one HTTP request."""

    server: MetricsServer  # type: ignore[assignment]  # a handler uses nothing else of a server

    def setup(self) -> None:
        """Read the request, up to a size limit. The base class would accept 100 lines of 64 KiB."""
        super().setup()
        request = b""
        while b"\r\n\r\n" not in request and len(request) < MAX_REQUEST_BYTES:
            if not (data := self.connection.recv(4096)):
                break
            request += data
        self.rfile = BytesIO(request)

    def do_GET(self) -> None:
        """Send the metrics in the format that the client accepts."""
        from prometheus_client.exposition import choose_encoder

        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "the metrics are at /metrics")
            return
        self.server.mark_requested(self.connection)
        encoder, content_type = choose_encoder(self.headers.get("Accept", ""))
        body = encoder(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

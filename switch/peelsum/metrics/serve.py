"""Serves metrics by HTTP, to a few clients at a time. It needs the library `prometheus_client`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, Self

from peelsum.forks import keep_from_children
from peelsum.metrics.catalogue import Metric
from peelsum.metrics.values import Values
from peelsum.tls import Identity, require_tls

#: Most clients at once, and seconds of silence after which one is closed.
MOST_CLIENTS, ASK_S = 8, 5.0


class MetricsError(Exception):
    """The metrics cannot be served at that address."""


def metrics_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT, or of PORT on loopback. Raises MetricsError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 0xFFFF:
        raise MetricsError(f"metrics: {text!r}: give PORT or HOST:PORT, as 9561 or 127.0.0.1:9561")
    return host.strip("[]") or "127.0.0.1", int(port)


class MetricsServer:
    """Serves `/metrics` in threads of its own until `close`. A context manager."""

    def __init__(
        self,
        address: tuple[str, int],
        metrics: Sequence[Metric],
        read: Callable[[], Values],
        identity: Identity | None = None,
    ) -> None:
        """read: returns the values now; other threads call it. Port 0 takes a free one.

        identity: with one, clients need TLS and a certificate of any role. Raises MetricsError, or TlsError
        for an address beyond loopback without one.
        """
        from prometheus_client import CollectorRegistry

        require_tls("metrics", address[0], identity)
        registry = CollectorRegistry()
        registry.register(_Collector(metrics, read))
        try:
            self._server = _Server(address, registry, identity)
        except OSError as error:
            host, port = address
            raise MetricsError(f"metrics: {host}:{port}: {error.strerror}; choose another") from None
        keep_from_children(self._server)
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        scheme = "http" if identity is None else "https"
        #: Where the metrics are.
        self.url = f"{scheme}://{host}:{self._server.server_port}/metrics"
        Thread(target=self._server.serve_forever, args=(0.05,), name="metrics", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()


class _Collector:
    def __init__(self, metrics: Sequence[Metric], read: Callable[[], Values]) -> None:
        self._metrics, self._read = metrics, read

    def describe(self) -> list[Any]:
        """Return nothing: the names need no check for duplicates, and reading may be too early."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield a family of samples for each metric."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        values = self._read()
        for metric in self._metrics:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in values.get(metric.name, {}).items():
                family.add_metric(labels, value)
            yield family


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], registry: Any, identity: Identity | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.registry = registry
        self._tls = None if identity is None else identity.context(server=True)
        # The connections, by age, and whether each has asked. Other threads change it, too.
        self._clients: dict[Any, bool] = {}
        self._changing = Lock()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. The base class skips it on OSError, as for a client that has gone already."""
        request, client_address = super().get_request()
        request.settimeout(ASK_S)
        if self._tls is not None:
            request = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, client_address

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            room = len(self._clients) < MOST_CLIENTS or self._make_room()
            if room:
                self._clients[request] = False
        if room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _make_room(self) -> bool:
        """Close the oldest connection that has sent no request, lest strangers keep scrapers out."""
        silent = next((client for client, asked in self._clients.items() if not asked), None)
        if silent is None:
            return False
        del self._clients[silent]
        with suppress(OSError):
            socket.socket.shutdown(silent, socket.SHUT_RDWR)  # its thread then closes it
        return True

    def asks(self, request: Any) -> None:
        """Note that a client has asked, and is to be answered."""
        with self._changing:
            if request in self._clients:
                self._clients[request] = True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, which then no longer counts."""
        with self._changing:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._tls is not None:
            # Here, in the client's thread: a client that never shakes hands keeps nobody waiting.
            request.do_handshake()
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that leave or send nonsense."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        from prometheus_client.exposition import choose_encoder

        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "the metrics are at /metrics")
            return
        self.server.asks(self.connection)
        encoder, content_type = choose_encoder(self.headers.get("Accept", ""))
        body = encoder(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

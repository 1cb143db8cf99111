"""Serves metrics by HTTP, to a few clients at a time. It needs the library `prometheus_client`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from threading import Lock, Thread
from typing import Any, Self

from peelsum.metrics.catalogue import Metric
from peelsum.metrics.values import Values
from peelsum.tls import Identity, require_tls
from peelsum.tls.acceptor import MOST_PENDING, Acceptor

#: Most clients at once, and seconds of silence after which one is closed.
MOST_CLIENTS, ASK_S = 64, 5.0
#: Bytes of a request after which no more are read; the last read may add up to 4 KiB.
LONGEST_REQUEST = 16 << 10


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
        #: What the handlers read.
        self.registry = CollectorRegistry()
        self.registry.register(_Collector(metrics, read))
        # The connections, by age, and whether each has asked. Each is answered in a thread of its own.
        self._clients: dict[socket.socket, bool] = {}
        self._changing = Lock()
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            listening = socket.create_server(address, family=family, backlog=MOST_PENDING)
        except OSError as error:
            host, port = address
            reason = str(error.strerror).partition(" (")[0]
            raise MetricsError(f"metrics: {host}:{port}: {reason}; choose another") from None
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        scheme = "http" if identity is None else "https"
        #: Where the metrics are.
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

    def _serve(self, link: socket.socket) -> None:
        with self._changing:
            if len(self._clients) >= MOST_CLIENTS and not self._make_room():
                link.close()
                return
            self._clients[link] = False
        Thread(target=self._answer, args=(link,), daemon=True).start()

    def _make_room(self) -> bool:
        """Close the oldest connection that has sent no request, lest strangers keep scrapers out."""
        silent = next((client for client, asked in self._clients.items() if not asked), None)
        if silent is None:
            return False
        del self._clients[silent]
        with suppress(OSError):
            socket.socket.shutdown(silent, socket.SHUT_RDWR)  # its thread then closes it
        return True

    def _answer(self, link: socket.socket) -> None:
        link.settimeout(ASK_S)
        try:
            with suppress(OSError):  # clients leave, are silent, or send nonsense
                _Handler(link, None, self)  # type: ignore[arg-type]  # no method here uses the address
        finally:
            with self._changing:
                self._clients.pop(link, None)
            with suppress(OSError):
                link.shutdown(socket.SHUT_WR)
            link.close()

    def asks(self, link: socket.socket) -> None:
        """Note that a client has asked, and is to be answered."""
        with self._changing:
            if link in self._clients:
                self._clients[link] = True


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


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer  # type: ignore[assignment]  # it has what a handler uses of a server

    def setup(self) -> None:
        """Read the request up to a limit; the base class would accept 100 lines of 64 KiB each."""
        super().setup()
        request = b""
        while b"\r\n\r\n" not in request and len(request) < LONGEST_REQUEST:
            if not (data := self.connection.recv(4096)):
                break
            request += data
        self.rfile = BytesIO(request)

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

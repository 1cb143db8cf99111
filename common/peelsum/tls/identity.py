"""The identity of a process: a folder with its certificate, its key, and the CA that signed both ends'.

Plain connections are for loopback only; `require_tls` keeps to that.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import closing
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from time import monotonic, sleep
from typing import Self

from peelsum.reading import read_bytes

#: Names of the files in an identity's folder.
CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"
#: What is wrong with a server that ends a connection before it has shown its certificate.
CLOSED_EARLY = (
    "closed the connection before TLS; too many are open that have no certificate, or it has no TLS: try "
    "again later, or close its port to strangers"
)
#: Seconds between two attempts.
_AGAIN_S = 0.1


class TlsError(ValueError):
    """A certificate, key, token or address cannot be used. The message is one line."""


@dataclass(frozen=True)
class Identity:
    """A certificate with its key, and the CA whose certificates are trusted."""

    folder: Path
    """Where its files are."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the identity in a folder. Raises TlsError naming the file that cannot be used."""
        identity = cls(folder)
        for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE):
            identity._bytes(name)
        identity.context(server=False)
        return identity

    @property
    def ca(self) -> bytes:
        """The CA's certificate, PEM."""
        return self._bytes(CA_FILE)

    @property
    def certificate(self) -> bytes:
        """The certificate, PEM."""
        return self._bytes(CERTIFICATE_FILE)

    @property
    def key(self) -> bytes:
        """The certificate's private key, PEM."""
        return self._bytes(KEY_FILE)

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Return a TLS 1.3 context, for a server or a client, that demands the other's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(self.folder / CA_FILE)
            context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)
        except OSError as error:  # ssl's errors are OSErrors
            reason = getattr(error, "reason", None) or error.strerror
            raise TlsError(
                f"tls: {self.folder}: {reason}; take {CA_FILE}, {CERTIFICATE_FILE} and {KEY_FILE} "
                "as they were made together"
            ) from None
        return context

    def try_tls(self, name: str, address: str, timeout_s: float) -> None:
        """Try TLS with a gRPC server at host:port; raise TlsError if either end refuses the other.

        A server that does not answer is no error here. One that closes the connection before the handshake is
        tried again until `timeout_s` seconds have passed. name: what listens there, for errors.
        """
        deadline = monotonic() + timeout_s
        while not self._shake_hands(name, address, max(deadline - monotonic(), 0.1)):
            if monotonic() >= deadline:
                raise TlsError(f"{name}: {address}: {CLOSED_EARLY}")
            sleep(_AGAIN_S)

    def _shake_hands(self, name: str, address: str, timeout_s: float) -> bool:
        """Return False if the server closed the connection before the handshake, else True.

        Raises TlsError if either end refuses the other's certificate.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        context = self.context(server=False)
        context.set_alpn_protocols(["h2"])
        try:
            plain = socket.create_connection((host, int(port)), timeout_s)
        except OSError:
            return True
        with closing(plain):
            try:
                link = context.wrap_socket(plain, server_hostname=host)
            except OSError as error:
                if closed_early(error):
                    return False
                if not isinstance(error, ssl.SSLError):
                    return True
                reason = tls_reason(error)
            else:
                # In TLS 1.3 the server's refusal follows the handshake; some close without an alert.
                with closing(link):
                    refusal = _refusal(link)
                if refusal is None:
                    return True
                reason = f"the other end refuses this certificate{refusal}"
        raise TlsError(
            f"{name}: {address}: TLS failed ({reason}); check that both ends' certificates are of one CA, "
            f"valid today, and the {name}'s for this host"
        )

    def _bytes(self, name: str) -> bytes:
        try:
            return read_bytes(self.folder / name)
        except OSError as error:
            raise TlsError(
                f"tls: {self.folder / name}: {error.strerror}; make it: peelsum certificates make ROLE"
            ) from None


def closed_early(error: OSError) -> bool:
    """Return whether a handshake failed because the server closed the connection before it."""
    # An error that Python itself raises, for data that came before the end, has no reason.
    without_reason = isinstance(error, ssl.SSLError) and not getattr(error, "reason", None)
    return without_reason or isinstance(error, ssl.SSLEOFError | ConnectionError)


def _refusal(link: ssl.SSLSocket) -> str | None:
    """Return why the other end closes the connection; None if it sends anything, or takes its time."""
    try:
        return None if link.recv(1) else ""
    except ConnectionError:
        return ""
    except ssl.SSLError as error:
        return f": {tls_reason(error)}"
    except OSError:
        return None


def tls_reason(error: ssl.SSLError) -> str:
    """Return an SSL error in words: the fault of the certificate, or the other end's message."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    # An error that Python itself raises has no reason.
    reason = (
        (getattr(error, "reason", None) or "the other end closed the connection").replace("_", " ").lower()
    )
    return "no TLS there" if reason == "wrong version number" else reason


def is_loopback(host: str) -> bool:
    """Return whether `host` is an address of this machine that no other machine can reach."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def require_tls(what: str, host: str, identity: Identity | None, remedy: str = "give --tls FOLDER") -> None:
    """Raise TlsError naming `what` unless `host` is on loopback or there is an identity."""
    if identity is None and not is_loopback(host):
        raise TlsError(
            f"{what}: {host} is beyond loopback, where only TLS is allowed; "
            f"{remedy} (`peelsum certificates make` makes it)"
        )

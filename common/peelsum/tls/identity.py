"""The identity of a process: a folder with its certificate, its private key, and the CA's certificate.

Connections without TLS are allowed on loopback only, which `require_tls` checks.
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
#: The error for a server that closes a connection before it has sent its certificate.
CLOSED_EARLY = (
    "closed the connection before TLS; too many are open that have no certificate, or it has no TLS: try "
    "again later, or close its port to strangers"
)
#: Seconds between two test handshakes.
_RETRY_S = 0.1


class TlsError(ValueError):
    """A certificate, key, token or address cannot be used. The message is one line."""


@dataclass(frozen=True)
class TlsIdentity:
    """A certificate with its private key, and the CA whose certificates are trusted."""

    folder: Path
    """The folder of its files."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the identity in a folder. Raises TlsError, with the name of the file that is unusable."""
        identity = cls(folder)
        for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE):
            identity._read_file(name)
        identity.context(server=False)
        return identity

    @property
    def ca(self) -> bytes:
        """The CA's certificate, PEM."""
        return self._read_file(CA_FILE)

    @property
    def certificate(self) -> bytes:
        """The certificate, PEM."""
        return self._read_file(CERTIFICATE_FILE)

    @property
    def key(self) -> bytes:
        """The certificate's private key, PEM."""
        return self._read_file(KEY_FILE)

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Return a TLS 1.3 context for a server or a client, which requires the other end's certificate."""
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

    def check_tls(self, name: str, address: str, timeout_s: float) -> None:
        """Do a test handshake with a gRPC server at host:port.

        Raises TlsError if either end rejects the other's certificate. It is no error if the server does not
        answer. If it closes the connection before the handshake, try again for `timeout_s` seconds.
        name: the kind of server, for errors.
        """
        deadline = monotonic() + timeout_s
        while not self._try_handshake(name, address, max(deadline - monotonic(), 0.1)):
            if monotonic() >= deadline:
                raise TlsError(f"{name}: {address}: {CLOSED_EARLY}")
            sleep(_RETRY_S)

    def _try_handshake(self, name: str, address: str, timeout_s: float) -> bool:
        """Do one handshake. Return False if the server closed the connection before it, else True.

        Raises TlsError if either end rejects the other's certificate.
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
                connection = context.wrap_socket(plain, server_hostname=host)
            except OSError as error:
                if closed_early(error):
                    return False
                if not isinstance(error, ssl.SSLError):
                    return True
                reason = tls_reason(error)
            else:
                # In TLS 1.3 the server rejects a certificate after the client's handshake has finished.
                with closing(connection):
                    rejection = _rejection(connection)
                if rejection is None:
                    return True
                reason = f"the other end refuses this certificate{rejection}"
        raise TlsError(
            f"{name}: {address}: TLS failed ({reason}); check that both ends' certificates are of one CA, "
            f"valid today, and the {name}'s for this host"
        )

    def _read_file(self, name: str) -> bytes:
        """Read a file of the identity. Raises TlsError."""
        try:
            return read_bytes(self.folder / name)
        except OSError as error:
            raise TlsError(
                f"tls: {self.folder / name}: {error.strerror}; make it: peelsum certificates make ROLE"
            ) from None


def closed_early(error: OSError) -> bool:
    """Return whether a handshake failed because the server closed the connection before it began."""
    # The `ssl` module raises an error without reason if data came before the connection was closed.
    raised_by_python = isinstance(error, ssl.SSLError) and not getattr(error, "reason", None)
    return raised_by_python or isinstance(error, ssl.SSLEOFError | ConnectionError)


def _rejection(connection: ssl.SSLSocket) -> str | None:
    """Wait for a byte or an error; return why the other end closed the connection, None if it did not."""
    try:
        return None if connection.recv(1) else ""
    except ConnectionError:
        return ""
    except ssl.SSLError as error:
        return f": {tls_reason(error)}"
    except OSError:
        return None


def tls_reason(error: ssl.SSLError) -> str:
    """Return the reason of an SSL error: what is wrong with the certificate, or the other end's alert."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = (
        (getattr(error, "reason", None) or "the other end closed the connection").replace("_", " ").lower()
    )
    return "no TLS there" if reason == "wrong version number" else reason


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address, or the name `localhost`."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def require_tls(
    what: str, host: str, identity: TlsIdentity | None, remedy: str = "give --tls FOLDER"
) -> None:
    """Raise TlsError if `host` is beyond loopback and there is no identity.

    what: the name of the option or server, with which the message begins.
    """
    if identity is None and not is_loopback(host):
        raise TlsError(
            f"{what}: {host} is beyond loopback, where only TLS is allowed; "
            f"{remedy} (`peelsum certificates make` makes it)"
        )

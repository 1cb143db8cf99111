"""Who a process is: its identity, a folder with certificate, private key and the CA's certificate; its role;
and tokens of jobs, each a secret in a file, which a worker sends when it requests a seat.

Connections without TLS are allowed on loopback only, which `require_tls` checks.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import socket
import ssl
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self
from urllib.parse import unquote

from peelsum.addresses import parse_address
from peelsum.reading import read_bytes, read_text

#: Names of the files in an identity's folder.
CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"
#: The error for a server that closes a connection before it has sent its certificate.
CLOSED_EARLY = (
    "closed the connection before TLS; too many are open that have no certificate, or it has no TLS: try "
    "again later, or close its port to strangers"
)
#: A certificate states its role as a URI among its subject alternative names.
_URI = "urn:peelsum:role:"
#: The length of the longest token, in characters.
MAX_TOKEN_LENGTH = 64
_TOKEN = re.compile(r"[\w-]{16,64}", re.ASCII)
#: Seconds between two test handshakes.
_RETRY_S = 0.1
#: X509_V_ERR_INVALID_PURPOSE: e.g. a worker's certificate, by which nobody may listen.
_WRONG_PURPOSE = 26


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
            identity.read_file(name)
        identity.context(server=False)
        return identity

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Return a TLS 1.3 context for a server or a client, which requires the other end's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(self.folder / CA_FILE)
            context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)
        except OSError as error:  # ssl's errors are OSErrors
            reason = getattr(error, "reason", None)
            if reason is None:
                is_ssl = isinstance(error, ssl.SSLError)
                reason = f"{CERTIFICATE_FILE} or {KEY_FILE} is damaged" if is_ssl else error.strerror
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
        host, port = parse_address(address)
        context = self.context(server=False)
        context.set_alpn_protocols(["h2"])
        try:
            plain = socket.create_connection((host, port), timeout_s)
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
                reason = "the other end refuses this certificate"
                with closing(connection):
                    try:
                        if connection.recv(1):
                            return True
                    except ssl.SSLError as error:
                        reason += f": {tls_reason(error)}"
                    except ConnectionError:
                        pass
                    except OSError:
                        return True
        raise TlsError(
            f"{name}: {address}: TLS failed ({reason}); check that both ends' certificates are of one CA, "
            f"valid today, and the {name}'s for this host"
        )

    def read_file(self, name: str) -> bytes:
        """Return one of the identity's files, PEM. Raises TlsError."""
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


def tls_reason(error: ssl.SSLError) -> str:
    """Return the reason of an SSL error: what is wrong with the certificate, or the other end's alert."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _WRONG_PURPOSE:
            return "the other end has the certificate of a role that is not for this"
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


class Role(StrEnum):
    """The rights of a certificate's holder."""

    SWITCH = "switch"
    """Is a switch: it accepts connections."""
    OPERATOR = "operator"
    """Writes to switches, runs `peelsum job serve` or `peelsum controller run`, and may use the latter."""
    VIEWER = "viewer"
    """Reads from switches and controllers."""
    WORKER = "worker"
    """Requests seats from `peelsum job serve`."""

    @property
    def uri(self) -> str:
        """The URI in certificates of this role."""
        return _URI + self.value

    @property
    def is_server(self) -> bool:
        """Whether processes of this role listen, so that their certificates need host names."""
        return self in (Role.SWITCH, Role.OPERATOR)

    @property
    def is_client(self) -> bool:
        """Whether processes of this role connect to others."""
        return self is not Role.SWITCH


def role_of(names: Iterable[str]) -> Role | None:
    """Return the role among a certificate's alternative names; None if there is no role, or several."""
    roles = [Role(name.removeprefix(_URI)) for name in names if name in {role.uri for role in Role}]
    return roles[0] if len(roles) == 1 else None


def role_of_peer(connection: ssl.SSLSocket) -> Role | None:
    """Return the role in the certificate of a connection's other end. The handshake must be finished."""
    names: Any = (connection.getpeercert() or {}).get("subjectAltName", ())
    return role_of(name for _, name in names)


def caller_role(peer: str) -> Role | None:
    """Return the role of a gRPC call's client; None if it has none.

    peer: what the call's `peer()` returns: the name of a relaying socket, to which `LimitedServer` added the
    role.
    """
    name = peer.rpartition("/")[2].partition("-")[0]
    return next((role for role in Role if role == name), None)


def caller_address(peer: str) -> str:
    """Return the address of a gRPC call's client, host:port.

    peer: what the call's `peer()` returns: the address, or the name of a relaying socket, to which
    `LimitedServer` added it.
    """
    kind, _, address = unquote(peer).partition(":")
    return address.rpartition("/")[2].split("-", 2)[-1] if kind == "unix" else address


def make_token(path: Path) -> None:
    """Write a random token of 256 bits to a new file that only its owner can read.

    Raises TlsError if the file exists.
    """
    write_new(path, secrets.token_urlsafe(32).encode() + b"\n", 0o600)


def read_token(path: Path) -> str:
    """Read the token in a file. Raises TlsError if the file is unreadable or has no valid token."""
    try:
        token = read_text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise TlsError(f"token: {path}: {reason}; make one: peelsum certificates token FILE") from None
    if not _TOKEN.fullmatch(token):
        raise TlsError(
            f"token: {path}: is not 16 to {MAX_TOKEN_LENGTH} letters, digits, - or _; "
            "make one: peelsum certificates token FILE"
        )
    return token


def tokens_equal(first: str, second: str) -> bool:
    """Compare two tokens in constant time, which does not reveal where they differ."""
    # JSON text may contain a lone surrogate, which cannot be encoded otherwise.
    return hmac.compare_digest(*(token.encode(errors="surrogatepass") for token in (first, second)))


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a new file with these permissions. Raises TlsError if it exists or cannot be written."""
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")
        try:
            with file:
                file.write(content)
        except OSError:
            # The disk may be full. Half a key would be in the way of the next attempt.
            with suppress(OSError):
                path.unlink()
            raise
    except FileExistsError:
        raise TlsError(f"{path}: exists and is not overwritten; remove it, or choose another name") from None
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}; choose another place") from None

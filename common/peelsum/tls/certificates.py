"""Create a certificate authority (CA) and the certificates that it signs. It needs `cryptography`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from peelsum.reading import read_bytes
from peelsum.tls.identity import CA_FILE, CERTIFICATE_FILE, KEY_FILE, Role, TlsError, write_new

CA_KEY_FILE = "ca-key.pem"
#: The validity of a CA and, by default, of a certificate, in days.
CA_DAYS, DAYS = 3650, 365
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
#: The arguments of `x509.KeyUsage`.
_KEY_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
#: A new certificate is already valid for so long, because the clocks of machines differ.
_CLOCK_TOLERANCE = timedelta(minutes=5)


def make(certs: Path, role: Role, *, name: str, hosts: Sequence[str] = (), days: int = DAYS) -> Path:
    """Create a certificate in the new folder `certs/name`, and the CA in `certs` if there is none.

    hosts: addresses and names by which clients reach this end, besides loopback; only for roles that are
    servers. days: how long the certificate is valid. Returns the new folder.
    Raises TlsError for an invalid value, or if files exist that would be overwritten.
    """
    if not _NAME.fullmatch(name):
        raise TlsError(f"name: {name!r}: use up to 63 letters, digits, dots, dashes and underlines")
    if hosts and not role.is_server:
        raise TlsError(f"host: {hosts[0]}: a {role} does not listen; leave --host out")
    folder = certs / name
    if folder.exists():
        raise TlsError(f"{folder}: exists and is not overwritten; remove it, or choose another --name")
    if not 1 <= days <= CA_DAYS:
        raise TlsError(f"days: {days} is out of range; use 1 to {CA_DAYS}")
    names = [_general_name(host) for host in hosts]
    certs.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca_key, ca = _read_or_make_ca(certs)
    expires_at = datetime.now(UTC) + timedelta(days=days)
    if expires_at > ca.not_valid_after_utc:
        days_left = (ca.not_valid_after_utc - datetime.now(UTC)).days
        raise TlsError(f"days: {days} is beyond the CA's end; use up to {days_left}, or another --certs")
    key = ec.generate_private_key(ec.SECP256R1())
    loopback = [_general_name(host) for host in _LOOPBACK] if role.is_server else []
    names = [x509.UniformResourceIdentifier(role.uri), *loopback, *names]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] * role.is_server
    purposes += [ExtendedKeyUsageOID.CLIENT_AUTH] * role.is_client
    usage = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    certificate = (
        _builder(name, key, expires_at, issuer=ca.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(dict.fromkeys(names)), critical=False)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(usage), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    folder.mkdir(mode=0o700)
    write_new(folder / KEY_FILE, _pem(key), 0o600)
    write_new(folder / CERTIFICATE_FILE, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    write_new(folder / CA_FILE, ca.public_bytes(serialization.Encoding.PEM), 0o644)
    return folder


def _read_or_make_ca(certs: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return key and certificate of the CA in `certs`; create them if neither exists. Raises TlsError."""
    key_path, path = certs / CA_KEY_FILE, certs / CA_FILE
    if not key_path.exists() and not path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        expires_at = datetime.now(UTC) + timedelta(days=CA_DAYS, hours=1)
        subject = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        uses = {name: name in ("key_cert_sign", "crl_sign") for name in _KEY_USES}
        ca = (
            _builder("peelsum CA", key, expires_at)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(**uses), critical=True)
            .add_extension(subject, critical=False)
            .sign(key, hashes.SHA256())
        )
        write_new(key_path, _pem(key), 0o600)
        write_new(path, ca.public_bytes(serialization.Encoding.PEM), 0o644)
        return key, ca
    try:
        loaded = serialization.load_pem_private_key(read_bytes(key_path), None)
        ca = x509.load_pem_x509_certificate(read_bytes(path))
    except (OSError, ValueError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not PEM without a password"
        raise TlsError(f"{certs}: {CA_FILE} or {CA_KEY_FILE}: {reason}; give another --certs") from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise TlsError(f"{key_path}: is not an elliptic curve's key; give another --certs")
    return loaded, ca


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, expires_at: datetime, issuer: x509.Name | None = None
) -> x509.CertificateBuilder:
    """Return a builder with the fields that all certificates have."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _CLOCK_TOLERANCE)
        .not_valid_after(expires_at)
    )


def _general_name(host: str) -> x509.GeneralName:
    """Return an IP address or a DNS name as a subject alternative name. Raises TlsError."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if not all(_NAME.fullmatch(part) for part in host.split(".")):
        raise TlsError(f"host: {host!r}: give an address or a name without port, as 10.0.0.254 or s1.lab")
    return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )

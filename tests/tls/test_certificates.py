"""Identities that `peelsum certificates` makes: their files, and what it refuses to make."""

import errno
import os
import ssl
import stat

import pytest
from command_line import peelsum

from peelsum.tls import Role, TlsError, TlsIdentity, make_token, read_token, role_of
from peelsum.tls.identity import is_loopback, write_new

ALL = sorted(Role)


@pytest.mark.parametrize("role", ALL)
def test_an_identity_has_its_role_and_a_key_that_only_its_owner_reads(folders, role):
    folder = folders[role]
    names = ssl._ssl._test_decode_cert(str(folder / "cert.pem"))["subjectAltName"]
    assert role_of(name for _, name in names) == role
    assert ("DNS", "localhost") in names or not role.is_server
    assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder.parent / "ca-key.pem").stat().st_mode) == 0o600
    assert TlsIdentity.read(folder).read_file("ca.pem") == (folder.parent / "ca.pem").read_bytes()
    assert not (folder / "ca-key.pem").exists()


@pytest.mark.parametrize(
    ("names", "role"),
    [
        ([], None),
        (["urn:peelsum:role:operator"], Role.OPERATOR),
        (["urn:peelsum:role:root"], None),
        (["urn:peelsum:role:viewer", "urn:peelsum:role:operator"], None),
        (["operator", "URN:peelsum:role:operator"], None),
    ],
)
def test_there_is_one_role_or_none(names, role):
    assert role_of(names) is role


def test_what_is_there_is_never_overwritten(tmp_path):
    arguments = ("certificates", "make", "worker", "--certs", str(tmp_path / "c"))
    first = peelsum(*arguments)
    assert first.stdout.startswith(f"{tmp_path / 'c' / 'worker'}: worker, 365 days; copy")
    before = {path: path.read_bytes() for path in (tmp_path / "c").rglob("*.pem")}
    assert len(before) == 5
    again = peelsum(*arguments)
    assert (again.returncode, again.stdout) == (2, "")
    assert "exists and is not overwritten; remove it, or choose another --name" in again.stderr
    assert peelsum(*arguments, "--name", "second").returncode == 0
    assert {path: path.read_bytes() for path in before} == before


def test_a_file_that_cannot_be_opened_is_not_removed(tmp_path, monkeypatch):
    def without_descriptors(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    path = tmp_path / "ca-key.pem"
    path.write_text("a key")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", without_descriptors)
        with pytest.raises(TlsError, match="Too many open files; choose"):
            write_new(path, b"another", 0o600)
    assert path.read_text() == "a key"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["worker", "--host", "h"], "host: h: a worker does not listen; leave --host out"),
        (["switch", "--host", "10.0.0.1:9559"], "give an address or a name without port"),
        (["switch", "--name", "../up"], "name: '../up': use up to 63 letters"),
        (["switch", "--days", "0"], "days: 0 is out of range; use 1 to 3650"),
    ],
)
def test_what_cannot_be_made_leaves_nothing(tmp_path, more, said):
    done = peelsum("certificates", "make", *more, "--certs", str(tmp_path / "c"))
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_identity_that_cannot_be_used_is_named(folders, tmp_path):
    with pytest.raises(TlsError, match=r"ca\.pem: No such file or directory; make it"):
        TlsIdentity.read(tmp_path)
    for name, owner in (("ca.pem", "worker"), ("cert.pem", "worker"), ("key.pem", "viewer")):
        (tmp_path / name).write_bytes((folders[owner] / name).read_bytes())
    with pytest.raises(TlsError, match=r"KEY_VALUES_MISMATCH; take ca\.pem, cert\.pem and key\.pem"):
        TlsIdentity.read(tmp_path)
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises(TlsError, match=r"cert\.pem or key\.pem is damaged; take ca\.pem"):
        TlsIdentity.read(tmp_path)


def test_a_token_is_secret_and_not_overwritten(tmp_path):
    path = tmp_path / "token"
    assert peelsum("certificates", "token", str(path)).returncode == 0
    token = read_token(path)
    assert len(token) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "exists and is not overwritten" in peelsum("certificates", "token", str(path)).stderr
    assert read_token(path) == token
    make_token(tmp_path / "other")
    assert read_token(tmp_path / "other") != token


@pytest.mark.parametrize("content", [b"", b"short", b"a b c d e f g h i j k l", b"\xff" * 20, b"x" * 65])
def test_a_file_that_is_not_a_token_is_refused(tmp_path, content):
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(TlsError, match=r"token: .*make one: peelsum certificates token FILE"):
        read_token(path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "[::]", "example.org", "", "localhost.lab"])
def test_beyond_loopback(host):
    assert not is_loopback(host)

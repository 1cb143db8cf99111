"""Identities of every role, of a CA of this run, and one of a CA that nobody trusts."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed")

from peelsum.tls import Role, TlsIdentity, certificates


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders of identities by name; `expired` is an operator's that ended yesterday."""
    ours, others = tmp_path_factory.mktemp("ours") / "certs", tmp_path_factory.mktemp("others") / "certs"
    made = {role.value: certificates.make(ours, role, name=role.value) for role in Role}
    made["stranger"] = certificates.make(others, Role.OPERATOR, name="stranger")

    class Earlier(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) - timedelta(days=2)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(certificates, "datetime", Earlier)
        for role in (Role.OPERATOR, Role.SWITCH, Role.WORKER):
            made[f"expired-{role}"] = certificates.make(ours, role, name=f"expired-{role}", days=1)
    return made


@pytest.fixture
def identity(folders):
    """Return a function that returns an identity by name."""
    return lambda name: TlsIdentity.read(folders[name])

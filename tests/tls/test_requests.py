"""Requests for a job over TLS: a worker with the job's token gets it, everyone else is told why not."""

import json
import re
import socket
import ssl
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from command_line import peelsum
from patience import PATIENCE_S

from peelsum.control.cluster.requests import MAX_CONNECTIONS, RequestServer
from peelsum.tls import TlsError
from peelsum.tls.identity import tls_reason
from peelsum.transport.lease import Lease

TOKEN = "0123456789abcdef_-XYZ"


class Serving:
    """A served job with TLS and a token, whose clock stands at `now`."""

    def __init__(self, identity):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = self._listening.getsockname()
        self.requests = RequestServer(self._listening, "job 1", identity=identity("operator"), token=TOKEN)
        self.now = 0.0

    def until(self, done):
        while not done():
            self.requests.next_client(self.now, 0.01)

    def answers(self, ask):
        """Return what `ask` returns or raises in a thread of its own; who gets the lease is told so."""
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask)
            while not asked.done():
                if self.requests.next_client(self.now, 0.01):
                    self.requests.respond({"welcome": True})
            return asked.result()

    def close(self):
        self.requests.__exit__()
        self._listening.close()


@pytest.fixture
def serving(identity):
    with closing(Serving(identity)) as serving:
        yield serving


@pytest.fixture
def ask(serving, identity):
    """Return a function that requests the job, and returns the response."""

    def asked(name, token=TOKEN):
        def request():
            lease = Lease(serving.address, PATIENCE_S, identity=identity(name) if name else None, token=token)
            with closing(lease):
                return json.loads(lease.response) if lease.response else None

        return serving.answers(request)

    return asked


@pytest.mark.parametrize("name", ["worker", "operator"])
def test_a_worker_with_the_token_gets_the_job(serving, ask, name):
    assert ask(name) == {"welcome": True}
    serving.until(lambda: serving.requests.holder is None)


@pytest.mark.parametrize("token", ["", "wrong" * 4, TOKEN[:-1], TOKEN + "x", "\ud800"])
def test_a_wrong_token(serving, ask, token):
    assert ask("worker", token) == {
        "error": "job 1: the token is not this job's; set PEELSUM_TOKEN to a file with the job's"
    }
    assert serving.requests.holder is None


def test_a_viewer_may_not_ask(ask):
    assert ask("viewer") == {
        "error": "job 1: start needs a certificate of role worker or operator; this one's is viewer"
    }


@pytest.mark.parametrize(
    ("name", "reason"),
    [("expired-worker", "certificate expired|closed the connection"), ("stranger", "certificate")],
)
def test_without_a_certificate_of_today_nothing_is_heard(serving, ask, name, reason):
    with pytest.raises(ssl.SSLError) as error:
        ask(name)
    assert re.search(reason, tls_reason(error.value))
    assert serving.requests.holder is None


def test_plain_text_is_not_a_handshake(serving, ask):
    assert ask(None) is None
    assert serving.requests.holder is None


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("said", [b"", b"GET /", b"\x16\x03\x01"])
def test_strangers_who_reset_their_connections_end_nothing(serving, ask, said):
    """As port scans and health checks do, before their connections are accepted."""
    for _ in range(2 * MAX_CONNECTIONS):
        with socket.create_connection(serving.address, PATIENCE_S) as stranger:
            stranger.sendall(said)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert not serving.requests.next_client(0.0, 0.0)
    assert ask("worker") == {"welcome": True}


def test_a_handshake_may_last_as_long_as_the_start_of_another_job(serving, identity, monkeypatch):
    monkeypatch.setattr("peelsum.transport.lease.CONNECT_S", 0.2)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(Lease, serving.address, PATIENCE_S, identity=identity("worker"), token=TOKEN)
        time.sleep(0.5)
        with closing(serving.answers(asked.result)) as lease:
            assert json.loads(lease.response) == {"welcome": True}


def test_a_controller_beyond_loopback_needs_an_identity():
    with pytest.raises(TlsError, match="set PEELSUM_TLS to a folder"):
        Lease(("192.0.2.1", 9560), 1.0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--listen", "0.0.0.0:9560"], "--listen: 0.0.0.0 is beyond loopback, where only TLS is allowed"),
        (["--listen", "0.0.0.0:9560", "--tls", "{operator}"], "token: is missing; give --token FILE"),
        (["--token", "/nowhere"], "token: /nowhere: No such file or directory"),
    ],
)
def test_job_serve_says_what_is_missing(folders, more, said):
    done = peelsum("job", "serve", "job.toml", "--udp", "h:1", *[word.format(**folders) for word in more])
    assert said in done.stderr
    assert done.returncode == 2

"""Connections without a certificate cannot keep those of others out, at whatever listens with TLS."""

import socket
import ssl
from contextlib import ExitStack, closing, contextmanager
from queue import Queue
from threading import Thread

import pytest
from patience import PATIENCE_S

from peelsum.tls import TlsError, acceptor, grpc_ends
from peelsum.tls.acceptor import Acceptor, oldest_of_largest_source
from peelsum.transport.lease import Lease


@contextmanager
def accepting(context):
    """Yield the address of an acceptor, and the connections that it passes on."""
    passed_on = Queue()
    listening = socket.create_server(("127.0.0.1", 0))
    with closing(Acceptor(listening, passed_on.put, context)):
        yield listening.getsockname(), passed_on


def connected(address, source):
    return socket.create_connection(address, PATIENCE_S, source_address=(source, 0))


def is_closed(link):
    try:
        return link.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("first_bytes", [b"", b"\x16\x03\x01"])
def test_a_crowd_at_one_address_keeps_no_other_out(identity, monkeypatch, first_bytes):
    monkeypatch.setattr(acceptor, "MAX_PENDING", 8)
    monkeypatch.setattr(acceptor, "HANDSHAKE_S", PATIENCE_S)
    client = identity("worker").context(server=False)
    with accepting(identity("switch").context(server=True)) as (address, passed_on), ExitStack() as stack:
        slow = stack.enter_context(connected(address, "127.0.0.1"))
        crowd = [stack.enter_context(connected(address, "127.0.0.2")) for _ in range(40)]
        for link in crowd:
            link.sendall(first_bytes)
        assert all(is_closed(link) for link in crowd[:20])
        with (
            client.wrap_socket(slow, server_hostname="127.0.0.1") as link,
            passed_on.get(timeout=PATIENCE_S) as end,
        ):
            link.sendall(b"x")
            assert end.recv(1) == b"x"
        # Neither does it keep its own address's clients out.
        with client.wrap_socket(connected(address, "127.0.0.2"), server_hostname="127.0.0.1") as link:
            passed_on.get(timeout=PATIENCE_S).close()


def test_silent_connections_end(identity, monkeypatch):
    monkeypatch.setattr(acceptor, "HANDSHAKE_S", 0.1)
    with (
        accepting(identity("switch").context(server=True)) as (address, _),
        connected(address, "127.0.0.1") as silent,
    ):
        assert is_closed(silent)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::]"])
def test_every_form_of_address_is_reached_by_ipv4(host):
    with grpc_ends.listen(f"{host}:0") as listening:
        connected(("127.0.0.1", listening.getsockname()[1]), "127.0.0.1").close()


def test_the_oldest_of_the_largest_crowd():
    assert oldest_of_largest_source({1: "a", 2: "b", 3: "c", 4: "b", 5: "c"}) == 2


def test_strangers_do_not_use_up_the_connections_of_grpc(identity, device, monkeypatch):
    from peelsum.control import SwitchError, open_session, read_status
    from peelsum.softswitch.p4runtime import serve

    monkeypatch.setattr(grpc_ends, "MAX_CONNECTIONS", 4)
    server = serve(device, "127.0.0.1:0", identity("switch"))
    host, _, port = server.address.rpartition(":")
    with ExitStack() as stack:
        stack.callback(server.stop)
        for _ in range(20):
            stack.enter_context(connected((host, int(port)), "127.0.0.1"))
        observed = open_session(server.address, identity=identity("viewer"), timeout_s=PATIENCE_S)
        with observed as viewer, pytest.raises(SwitchError, match="runs no pipeline"):
            read_status(viewer)


def test_a_connection_that_is_closed_before_tls_is_no_fault_of_certificates(identity):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def close_all():
            while True:
                try:
                    listening.accept()[0].close()
                except OSError:
                    return

        Thread(target=close_all, daemon=True).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(
            TlsError, match=rf"switch: {address}: closed the connection before TLS; too many"
        ) as error:
            identity("viewer").check_tls("switch", address, 0.3)
        assert "certificates" not in str(error.value)
        with pytest.raises(OSError, match="closed the connection before TLS") as refused:
            Lease(listening.getsockname(), PATIENCE_S, identity=identity("worker"))
        assert not isinstance(refused.value, ssl.SSLError)
        listening.shutdown(socket.SHUT_RDWR)

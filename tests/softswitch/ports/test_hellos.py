"""Hellos to UDP ports with a secret: who becomes the peer, whom the port refuses, and what is counted."""

import contextlib
import socket

import numpy as np
import pytest

from peelsum.softswitch.ports import udp_kernels
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.wire import packet_bytes
from peelsum.wire.hello import proof, siphash_2_4

SIZE = packet_bytes(8)
SECRET, OTHER = bytes(range(16)), bytes(range(1, 17))


def test_the_hash_is_siphash():
    # The designers' vector of 16 bytes, which `openssl mac ... SIPHASH` computes, too.
    words = [np.uint64(int.from_bytes(SECRET[i : i + 8], "little")) for i in (0, 8, 0, 8)]
    assert int(siphash_2_4(*words)).to_bytes(8, "little").hex() == "db9bc2577fcc2a3f"
    assert proof(SECRET, bytes(8)).hex() == "017755efc0d3a098"


@pytest.fixture
def ports():
    """Port 1, with a secret, and port 2, without one."""
    with contextlib.closing(UdpPorts([1, 2], accepts_any_hello=False)) as opened:
        opened.resize(SIZE)
        opened.ports[1].set_secret(SECRET)
        yield opened


@pytest.fixture
def host(ports):
    """Open hosts whose datagrams go to port 1."""
    with contextlib.ExitStack() as stack:

        def connected(port=1):
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sock.connect(("127.0.0.1", ports.listening[port]))
            sock.setblocking(False)
            return sock

        yield connected


def answer(ports, host, datagram=b""):
    """Send a datagram to the port; return what comes back, or None."""
    host.send(datagram)
    assert len(ports.receive([1, 2])) == 0
    try:
        return host.recv(100)
    except BlockingIOError:
        return None


def counts(ports, port=1):
    now = ports.ports[port].counts
    return now.hellos, now.challenges, now.refused


def passes(ports, host):
    """Return whether the port takes packets from the host."""
    host.send(bytes(SIZE))
    return len(ports.receive([1])) == 1


def test_the_secret_makes_a_host_the_peer(ports, host):
    worker = host()
    challenge = answer(ports, worker)
    assert not passes(ports, worker)
    assert answer(ports, worker, proof(SECRET, challenge)) == b""
    assert passes(ports, worker)
    assert answer(ports, worker) == b""  # a peer's next hello needs no proof
    assert counts(ports) == (2, 1, 0)


def test_who_lacks_the_secret_changes_nothing(ports, host):
    worker, stranger = host(), host()
    answer(ports, worker, proof(SECRET, answer(ports, worker)))
    challenge = answer(ports, stranger)
    for guess in (b"", proof(OTHER, challenge), bytes(8), bytes(7), bytes(9), challenge):
        assert answer(ports, stranger, guess) in (None, challenge)
    assert not passes(ports, stranger)
    assert passes(ports, worker)
    assert counts(ports) == (1, 3, 3)


def test_a_recorded_proof_is_worth_nothing_from_another_address(ports, host):
    worker, stranger = host(), host()
    recorded = proof(SECRET, answer(ports, worker))
    assert answer(ports, worker, recorded) == b""
    assert answer(ports, stranger) is not None
    assert answer(ports, stranger, recorded) is None
    assert passes(ports, worker)
    assert counts(ports) == (1, 2, 1)


def test_a_proof_is_for_one_port(ports, host):
    ports.ports[2].set_secret(SECRET)
    worker = host()
    challenge = answer(ports, worker)
    worker.connect(("127.0.0.1", ports.listening[2]))
    assert answer(ports, worker, proof(SECRET, challenge)) is None
    assert counts(ports, 2) == (0, 0, 1)


def test_a_peer_that_sends_keeps_its_port_and_a_silent_one_loses_it(ports, host):
    before, after = host(), host()
    answer(ports, before, proof(SECRET, answer(ports, before)))
    assert passes(ports, before)
    right = proof(SECRET, answer(ports, after))
    assert answer(ports, after, right) is None
    ports.sockets.state[0, udp_kernels.UdpColumn.ACTIVE_AT] -= udp_kernels.SILENCE_NS
    assert passes(ports, before)  # it sent something since
    assert answer(ports, after, right) is None
    ports.sockets.state[0, udp_kernels.UdpColumn.ACTIVE_AT] -= udp_kernels.SILENCE_NS
    assert answer(ports, after, right) == b""
    assert passes(ports, after)
    assert not passes(ports, before)
    assert counts(ports) == (2, 2, 2)


def test_another_secret_ends_the_peers_right(ports, host):
    worker, successor = host(), host()
    answer(ports, worker, proof(SECRET, answer(ports, worker)))
    ports.ports[1].set_secret(SECRET)
    assert passes(ports, worker)
    ports.ports[1].set_secret(OTHER)
    assert not passes(ports, worker)
    assert answer(ports, successor, proof(OTHER, answer(ports, successor))) == b""


def test_a_port_without_a_secret_accepts_hellos_only_if_it_is_open(ports, host):
    assert answer(ports, host(2)) is None
    assert answer(ports, host(2), proof(bytes(16), bytes(8))) is None
    assert counts(ports, 2) == (0, 0, 2)
    with contextlib.closing(UdpPorts([1])) as opened, socket.socket(type=socket.SOCK_DGRAM) as worker:
        worker.connect(("127.0.0.1", opened.listening[1]))
        worker.setblocking(False)
        worker.send(b"")
        opened.receive([1])
        assert worker.recv(100) == b""

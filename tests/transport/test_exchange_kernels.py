"""The compiled loops at a socket: datagrams of a wrong size, the clock, and answers without delay."""

import errno
import select
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from frames import checksum
from patience import PATIENCE_S
from udp_switch import served

from peelsum.summation import Part
from peelsum.transport import AggregationServer, JobConfig, SwitchSummation
from peelsum.transport.endpoint import WorkerEndpoint
from peelsum.transport.errors import SwitchUnreachableError
from peelsum.transport.exchange_kernels import NOTHING, Station, exchange, new_wire, received, sent, serve
from peelsum.transport.link import PortLink
from peelsum.transport.warming import warm_up
from peelsum.wire import Kind, pack, packet_bytes, packet_fields
from peelsum.wire.datagrams import BatchSocket
from peelsum.wire.hello import proof
from peelsum.wire.system_calls import seconds

LANES = 8
SIZE = packet_bytes(LANES)
CONFIG = JobConfig(job_id=1, generation=4, workers=1, lanes=LANES, window=64, first_chunk=0)


@pytest.fixture
def ends():
    """Two sockets, connected to each other."""
    local = ("127.0.0.1", 0)
    with BatchSocket.bind(local, SIZE) as one, BatchSocket.bind(local, SIZE) as other:
        one.connect(other.address)
        other.connect(one.address)
        yield one, other


def counted(wire):
    """Receive until nothing is there; return the number of packets."""
    total = 0
    while (got := received(wire)) != NOTHING:
        assert got >= 0
        total += got
    return total


def test_datagrams_of_another_size_are_dropped_and_counted():
    plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with plain, BatchSocket.bind(("127.0.0.1", 0), SIZE) as one:
        plain.connect(one.address)
        one.connect(plain.getsockname())
        wire = new_wire(one, SIZE // 4)
        for size in (SIZE, 0, SIZE - 1, SIZE + 1, 2 * SIZE, SIZE):
            plain.send(bytes(size))
        assert (counted(wire), wire.odd.tolist()) == (2, [3])


#: Type and code of ICMP messages that Linux reports to a connected socket, and its error. Left out is (3, 4),
#: EMSGSIZE, after which Linux would use a smaller MTU for ten minutes.
ICMP = {
    (3, 2): errno.ENOPROTOOPT,
    (3, 3): errno.ECONNREFUSED,
    (3, 6): errno.ENETUNREACH,
    (3, 7): errno.EHOSTDOWN,
    (3, 8): errno.ENONET,
    (3, 10): errno.EHOSTUNREACH,  # as many firewalls answer
    (12, 0): errno.EPROTO,
}


def report(sock, peer, kind, code):
    """Send the ICMP message that a datagram of `sock` to `peer` had trouble, as a stranger can; await it."""
    (source, from_port), (target, to_port) = sock.address, peer.address
    hosts = socket.inet_aton(source) + socket.inet_aton(target)
    quoted = struct.pack("!BBHHHBBH", 0x45, 0, 36, 0, 0, 64, 17, 0) + hosts
    quoted += struct.pack("!HHHH", from_port, to_port, 16, 0)
    check = checksum(struct.pack("!BBHI", kind, code, 0, 0) + quoted)
    try:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except PermissionError:
        pytest.skip("no permission for raw sockets")
    with raw:
        raw.sendto(struct.pack("!BBHI", kind, code, check, 0) + quoted, (source, 0))
    pending = select.poll()
    pending.register(sock.fileno(), 0)
    assert pending.poll(1000 * PATIENCE_S) == [(sock.fileno(), select.POLLERR)]


def trouble(sock):
    """Return, and clear, the error that the next call would have."""
    return sock._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


@pytest.mark.parametrize(("kind", "code"), ICMP)
def test_a_stranger_s_icmp_message_ends_no_link(ends, kind, code):
    one, other = ends
    wire, packets = new_wire(one, SIZE // 4), np.arange(SIZE, dtype=np.uint8)[None]
    report(one, other, kind, code)
    assert trouble(one) == ICMP[kind, code]

    report(one, other, kind, code)
    assert one.receive() is None
    report(one, other, kind, code)
    assert received(wire) == NOTHING

    offload = one.offload, one.segments
    report(one, other, kind, code)
    assert one.send(packets) == 1
    report(one, other, kind, code)
    wire.scratch[:1] = packets.view(np.uint32)
    wire.unsent[:] = (1, 0, 1)
    assert (sent(wire, wire.scratch), wire.unsent.tolist()) == (0, [1, 1, 0])
    assert (one.offload, one.segments) == offload
    burst = other.receive()
    assert np.array_equal(burst.packets, np.repeat(packets, 2, axis=0))
    assert trouble(one) == 0


def test_the_loops_clock_is_pythons():
    """Both compare times with each other: `until` is Python's, and `now` the loops'."""
    scratch = np.zeros(2, np.int64)
    for _ in range(100):
        before, now, after = time.monotonic(), seconds(scratch), time.monotonic()
        assert before - 1e-6 <= now <= after + 1e-6


@pytest.mark.parametrize(("lanes", "rows"), [(8, 128), (256, 62), (500, 64), (1024, 60), (4096, 63)])
def test_packets_are_taken_in_numbers_that_fill_whole_datagrams(lanes, rows):
    size = packet_bytes(lanes)
    with BatchSocket.bind(("127.0.0.1", 0), size) as sock:
        if not sock.offload:
            pytest.skip("the kernel does not segment datagrams")
        assert len(new_wire(sock, size // 4).scratch) == rows
        assert rows % sock.segments == 0


def test_retransmissions_and_contributions_share_a_datagram(ends):
    """The chunks whose contributions were lost are requested first."""
    one, other = ends
    endpoint = WorkerEndpoint(CONFIG, 0)
    endpoint.submit(np.arange(20 * LANES, dtype=np.uint32), "add")
    station = Station(endpoint.state, new_wire(one, SIZE // 4))
    endpoint.to_send(0.0, 7)  # these are lost
    needs = pack(np.zeros((2, LANES), np.uint32), kind=Kind.NEED, job_id=1, generation=4, sender=0xFF,
                 chunk_id=np.array([5, 2]), bitmap=1)  # fmt: skip
    endpoint.receive(needs, 0.0)
    assert exchange((station,), np.zeros(1, np.int64), 0.0) == (0, 0)
    burst = other.receive()
    packets = packet_fields(burst.packets, LANES)
    assert packets["chunk_id"].tolist() == [5, 2, *range(7, 20)]
    assert packets["kind"].tolist() == 2 * [Kind.RESEND] + 13 * [Kind.CONTRIBUTION]
    assert np.array_equal(packets["lanes"][2:].ravel(), np.arange(7 * LANES, 20 * LANES))
    assert other.receive() is None


def test_a_result_is_sent_as_soon_as_its_sum_is_there(ends):
    """The loop does not wait for a further packet, or for its end, before it sends what it has."""
    one, other = ends
    warm_up(LANES)
    server = AggregationServer(CONFIG)
    woken, waker = socket.socketpair()
    wire = new_wire(one, SIZE // 4, woken.fileno())
    header = {"job_id": 1, "generation": 4, "sender": 0, "chunk_id": 0, "bitmap": 1}
    other.send(pack(np.full((1, LANES), 5, np.uint32), kind=Kind.BYPASS, **header))
    with woken, waker, ThreadPoolExecutor() as pool:
        until = time.monotonic() + PATIENCE_S
        running = pool.submit(serve, server.state, wire, until)
        try:
            (packet,) = answer(other)
        finally:
            waker.send(b"\0")
        assert running.result() == 0
    assert (packet["kind"], packet["chunk_id"], packet["lanes"].tolist()) == (Kind.RESULT, 0, [5] * LANES)


def answer(sock):
    """Wait for packets, a tenth as long as anything else may take."""
    deadline = time.monotonic() + PATIENCE_S / 10
    while (burst := sock.receive()) is None:
        assert time.monotonic() < deadline, "no answer"
        time.sleep(0.01)
    return packet_fields(burst.packets, LANES)


def test_statistics_have_what_was_dropped_for_its_size():
    with served(CONFIG, runs=False) as (switch, service, pool, _):
        assert service.stats().dropped["wrong_size"] == 0
        serving = pool.submit(service.run)
        switch.send_raw(bytes(SIZE - 1))
        with SwitchSummation(CONFIG, 0, switch.address(0)) as summation:
            switch.send_raw(bytes(SIZE - 1), 0)
            summation.sum_words([Part(np.arange(100, dtype=np.uint32), "add")])
            assert summation.stats().dropped["wrong_size"] == 1
        service.stop()
        assert serving.result().dropped["wrong_size"] == 1


def test_a_challenge_is_answered_by_the_loop_and_by_a_link():
    secret, challenge = bytes(range(16)), b"8 bytes."
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.bind(("127.0.0.1", 0))
        port.settimeout(PATIENCE_S)

        def switch():
            """Challenge hellos, and answer the right proof."""
            while (got := port.recvfrom(100))[0] != proof(secret, challenge):
                port.sendto(challenge, got[1])
            port.sendto(b"", got[1])

        with ThreadPoolExecutor(1) as pool:
            answered = pool.submit(switch)
            with PortLink(port.getsockname(), SIZE, hello_s=PATIENCE_S, secret=secret.hex()) as link:
                answered.result(PATIENCE_S)
                wire = new_wire(link.socket, SIZE // 4, secret=link.secret)
                port.sendto(challenge, ("127.0.0.1", link.socket.address[1]))
                while received(wire) == NOTHING:
                    select.select([link.socket], [], [], PATIENCE_S)
                while (datagram := port.recv(100)) != proof(secret, challenge):
                    assert datagram == b""  # a hello that crossed the first answer
                assert wire.odd.tolist() == [0]


def test_a_worker_without_the_secret_is_told_so():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port, ThreadPoolExecutor(1) as pool:
        port.bind(("127.0.0.1", 0))
        port.settimeout(PATIENCE_S)
        pool.submit(lambda: port.sendto(bytes(8), port.recvfrom(100)[1]))
        with pytest.raises(SwitchUnreachableError, match="refused this host for 1 s; check that the job"):
            PortLink(port.getsockname(), SIZE, hello_s=1.0)

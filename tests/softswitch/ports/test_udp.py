"""UDP ports of the softswitch: who their peer is, headers around payloads, loss, and counts of drops."""

import contextlib
import os
import socket
import time

import numpy as np
import pytest
import softswitch_frames
from softswitch_frames import received

from peelsum.softswitch.ports import udp_kernels
from peelsum.softswitch.ports.udp import MOST_BYTES, UdpPorts, frame_header
from peelsum.wire import FRAME_HEADER_BYTES, UDP_PORT, packet_bytes
from peelsum.wire.datagrams import BatchSocket

SIZE = packet_bytes(8)


@contextlib.contextmanager
def opened(*numbers, **options):
    ports = UdpPorts(numbers or (1, 2), **options)
    try:
        ports.resize(SIZE)
        yield ports
    finally:
        ports.close()


def host_at(ports, number):
    return softswitch_frames.host_at(lambda _: ports.receive([number]), ports.listening[number], SIZE)


def packets(count, seed=1, size=SIZE):
    return np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)


def test_received_payloads_get_headers_that_are_removed_on_sending():
    with opened(3) as ports, host_at(ports, 3) as host:
        sent = packets(5)
        host.send(sent)
        frames = ports.receive([3])
        assert frames.port.tolist() == [3] * 5
        assert frames.length.tolist() == [FRAME_HEADER_BYTES + SIZE] * 5
        for row, payload in zip(frames.data, sent, strict=True):
            assert bytes(row[:FRAME_HEADER_BYTES]) == bytes(frame_header(3, SIZE))
            assert np.array_equal(row[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + SIZE], payload)
        ports.send(frames)
        assert np.array_equal(received(host, SIZE), sent)
        counts = ports.ports[3].counts
        assert (counts.hellos, counts.received, counts.sent) == (1, 5, 5)


def test_programs_without_lanes_get_datagrams_of_any_size_and_peelsums_one_size_again():
    sizes = [1, 8, 16, 20, 1472, 8, MOST_BYTES]  # 8 bytes from the peer are no proof
    with opened(3) as ports, host_at(ports, 3) as host:
        ports.resize(packet_bytes(0))
        payloads = [bytes(packets(1, size, size)[0]) for size in [*sizes, MOST_BYTES + 1]]
        plain = socket.socket(fileno=os.dup(host.fileno()))
        with plain:
            host.resize(MOST_BYTES, is_maximum=True)
            for payload in payloads:
                assert plain.send(payload) == len(payload)
            frames = ports.receive([3])
            expected = [bytes(frame_header(3, len(payload))) + payload for payload in payloads[:-1]]
            assert [frame for _, frame in frames.pairs()] == expected
            ports.send(frames)
            assert [plain.recv(1 << 16) for _ in sizes] == payloads[:-1]
        assert (ports.ports[3].counts.odd, ports.ports[3].counts.sent) == (1, len(sizes))
        ports.resize(SIZE)
        host.resize(SIZE)
        host.send(packets(5))
        ports.send(ports.receive([3]))
        assert np.array_equal(received(host, SIZE), packets(5))
        assert ports.ports[3].socket.offload
        while ports.ports[3].socket.offload:  # as if the network device had refused to segment
            ports.ports[3].socket.reduce_segments()
        ports.resize(SIZE)
        host.send(packets(9))
        assert len(ports.receive([3])) == 9, "merged datagrams are still divided"
        ports.resize(packet_bytes(0))
        host.send(packets(9))
        assert len(ports.receive([3])) == 9, "the kernel does not merge any more"


def test_headers_are_read_as_scapy_reads_them():
    scapy = pytest.importorskip("scapy.layers.inet")
    frame = pytest.importorskip("scapy.layers.l2").Ether(bytes(frame_header(300, SIZE)) + bytes(SIZE))
    ip = frame[scapy.IP]
    assert (ip.src, ip.dst, ip.len) == ("10.0.1.44", "10.0.255.254", 28 + SIZE)
    checksum = ip.chksum
    del ip.chksum
    assert scapy.IP(bytes(ip)).chksum == checksum
    assert (ip[scapy.UDP].dport, ip[scapy.UDP].len) == (UDP_PORT, 8 + SIZE)


def test_packets_of_others_than_the_peer_are_dropped_and_counted():
    with opened(1) as ports, host_at(ports, 1) as host, BatchSocket.bind(("127.0.0.1", 0), SIZE) as stranger:
        stranger.send(packets(3, seed=2), ("127.0.0.1", ports.listening[1]))
        host.send(packets(2))
        frames = ports.receive([1])
        assert np.array_equal(frames.data[:, FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + SIZE], packets(2))
        assert ports.ports[1].counts.foreign == 3


def test_the_last_host_to_send_a_hello_is_the_peer():
    with opened(1) as ports, host_at(ports, 1) as before:
        before.send(packets(1))
        frames = ports.receive([1])
        with host_at(ports, 1) as after:
            ports.send(frames)
            assert len(received(after, SIZE)) == 1
            assert len(received(before, SIZE)) == 0


def test_a_packet_for_a_port_without_peer_is_dropped_and_counted():
    with opened(1, 2) as ports, host_at(ports, 1) as host:
        host.send(packets(3))
        frames = ports.receive([1])
        frames.port[:] = (2, 9, 1)
        ports.send(frames)
        assert ports.ports[2].counts.unreachable == 1
        assert ports.unsent_frames == {"malformed": 0, "unknown_port": 1}
        assert np.array_equal(received(host, SIZE), packets(3)[2:])


def test_a_peer_that_the_system_refuses_does_not_end_the_switch():
    with opened(1) as ports, host_at(ports, 1) as host:
        host.send(packets(3))
        frames = ports.receive([1])
        ports.ports[1].join(("255.255.255.255", 9))  # a broadcast, which the system refuses by default
        ports.send(frames)
        assert ports.ports[1].counts.unreachable == 3


def test_copies_to_several_ports_keep_each_ports_order():
    with opened(1, 2) as ports, host_at(ports, 1) as first, host_at(ports, 2) as second:
        sent = packets(6)
        first.send(sent)
        frames = ports.receive([1, 2])
        frames.port[:] = (2, 1, 2, 2, 1, 2)
        ports.send(frames)
        assert np.array_equal(received(first, SIZE), sent[[1, 4]])
        assert np.array_equal(received(second, SIZE), sent[[0, 2, 3, 5]])


@pytest.mark.parametrize(("offset", "value"), [(12, 0x86), (14, 0x46), (23, 6), (None, None)])
def test_frames_other_than_udp_or_of_another_length_are_dropped_and_counted(offset, value):
    with opened(1) as ports, host_at(ports, 1) as host:
        host.send(packets(2))
        frames = ports.receive([1])
        if offset is None:
            frames.length[0] -= 1
        else:
            frames.data[0, offset] = value
        ports.send(frames)
        assert ports.unsent_frames == {"malformed": 1, "unknown_port": 0}
        assert np.array_equal(received(host, SIZE), packets(2)[1:])


def test_busy_ports_share_a_batch():
    with (
        opened(1, 2, batch=128, offload=False) as ports,
        host_at(ports, 1) as host_1,
        host_at(ports, 2) as host_2,
    ):
        for host in (host_1, host_2):
            host.send(packets(200))
        first = ports.receive([1, 2])
        assert np.bincount(first.port).tolist() == [0, 64, 64]
        rest = [len(ports.receive([1, 2]).port) for _ in range(4)]
        assert sum(rest) == 400 - 128


def test_loss_is_the_requested_share_and_the_same_for_a_seed():
    def fates(seed):
        with opened(1, loss=0.2, seed=seed) as ports:
            return np.array([udp_kernels.survives(ports.sockets, 0, 0) for _ in range(5000)])

    assert 3800 < np.count_nonzero(fates(1)) < 4200
    assert np.array_equal(fates(1), fates(1))
    assert not np.array_equal(fates(1), fates(2))


def test_what_a_port_does_not_lose_arrives_whole_and_in_order():
    sent = np.random.default_rng(1).integers(0, 256, (500, SIZE), np.uint8)
    with opened(1, loss=0.3, seed=2) as ports, host_at(ports, 1) as host:
        host.send(sent)
        frames = ports.receive([1])
    places = [
        int(np.flatnonzero((sent == data[FRAME_HEADER_BYTES:]).all(1))[0])
        for data in frames.data[:, : FRAME_HEADER_BYTES + SIZE]
    ]
    assert 300 < len(places) < 400
    assert np.all(np.diff(places) > 0)


@pytest.mark.parametrize(("loss", "burst"), [(0.02, 4.0), (0.2, 10.0), (0.3, 1.0)])
def test_losses_in_bursts_have_the_share_and_the_mean_length(loss, burst):
    with opened(1, loss=loss, loss_burst=burst, seed=3) as ports:
        lost = np.array([not udp_kernels.survives(ports.sockets, 0, 1) for _ in range(200_000)])
    begins = np.count_nonzero(lost[1:] & ~lost[:-1])
    assert lost.mean() == pytest.approx(loss, rel=0.1)
    assert np.count_nonzero(lost) / begins == pytest.approx(burst, rel=0.05)


@pytest.mark.parametrize(("loss", "burst"), [(0.2, 10.0), (0.4, 1.0), (0.5, 1.5)])
def test_pauses_between_packets_do_not_change_the_share(loss, burst):
    with opened(1, loss=loss, loss_burst=burst, seed=3) as ports:
        lost = 0
        for _ in range(20_000):
            ports.sockets.lost_at[0, 1] -= 7000
            udp_kernels.lose_sent(ports.sockets, port := np.array([1], np.int32))
            lost += int(port[0] == udp_kernels.HELD)
    assert lost / 20_000 == pytest.approx(loss, rel=0.1)


def test_a_burst_ends_while_no_packet_comes():
    """It lasts 100 packets, or a millisecond: then a single packet is lost as rarely as any other."""
    with opened(1, loss=0.01, loss_burst=100.0, seed=3) as ports:
        sockets, lost = ports.sockets, {}
        for silence_ns in (0, 10_000_000_000):
            lost[silence_ns] = 0
            for _ in range(2000):
                sockets.lost[0, 1], sockets.lost_at[0, 1] = 1, time.monotonic_ns() - silence_ns
                port = np.array([1], np.int32)
                udp_kernels.lose_sent(sockets, port)
                lost[silence_ns] += int(port[0] == udp_kernels.HELD)
    assert lost[0] > 1600
    assert lost[10_000_000_000] < 60


def test_late_packets_change_places_with_later_ones_and_none_is_lost():
    sent = np.random.default_rng(1).integers(0, 256, (500, SIZE), np.uint8)
    with opened(1, late=0.1, seed=2) as ports, host_at(ports, 1) as host:
        host.send(sent)
        ports.send(ports.receive([1]))
        back = received(host, SIZE)
        counts = ports.ports[1].counts
    places = np.array([int(np.flatnonzero((sent == packet).all(1))[0]) for packet in back])
    assert sorted(places) == list(range(500))
    assert 20 < counts.late < 80
    assert counts.late <= np.count_nonzero(places != np.arange(500)) <= 2 * counts.late
    assert np.abs(places - np.arange(500)).max() > 3


@pytest.mark.parametrize("late", [0.5, 1.0])
def test_no_packet_is_late_by_more_positions_than_documented(late):
    sent = np.random.default_rng(1).integers(0, 256, (500, SIZE), np.uint8)
    with opened(1, late=late, seed=2) as ports, host_at(ports, 1) as host:
        host.send(sent)
        ports.send(ports.receive([1]))
        back = received(host, SIZE)
    places = np.array([int(np.flatnonzero((sent == packet).all(1))[0]) for packet in back])
    assert sorted(places) == list(range(500))
    assert (np.arange(500) - places).max() == udp_kernels.MOST_LATE


def test_loss_affects_both_directions_but_not_hellos():
    with opened(1, loss=0.5, seed=7) as ports:
        for _ in range(20):
            with host_at(ports, 1) as host:
                host.send(packets(100))
                frames = ports.receive([1])
                ports.send(frames)
                back = received(host, SIZE)
        counts = ports.ports[1].counts
        assert counts.hellos == 20
        assert counts.received + counts.lost_in == 2000
        assert counts.sent + counts.lost_out == counts.received
        assert 800 < counts.lost_in < 1200
        assert 300 < counts.lost_out < 700
        assert 0 < len(back) < 60


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_loss_outside_its_range_is_refused_and_frees_the_port(share):
    with pytest.raises(ValueError, match=f"loss: {share} is out of range; use 0 to 1"):
        UdpPorts([1], loss=share)


@pytest.mark.parametrize("share", [0.0, 0.9, 1.0])
def test_a_share_that_bursts_cannot_have_is_refused(share):
    with pytest.raises(
        ValueError, match=f"loss-burst: 4 needs a --loss above 0 and up to 0.8, not {share:g};"
    ):
        UdpPorts([1], loss=share, loss_burst=4.0)


@pytest.mark.parametrize("number", [-1, 512])
def test_a_port_that_v1model_does_not_have_is_refused(number):
    with pytest.raises(ValueError, match=f"port: {number} is out of range; use 0 to 511"):
        UdpPorts([1, number])


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_taken_port_is_named_and_the_others_are_freed():
    with BatchSocket.bind(("127.0.0.1", 0), SIZE) as holder:
        taken, free = holder.address[1], free_port()
        with pytest.raises(OSError, match=f"127.0.0.1:{taken}: .*choose another"):
            UdpPorts([1, 2], base={1: free, 2: taken})
        BatchSocket.bind(("127.0.0.1", free), SIZE).close()


def test_resizing_changes_the_accepted_packet_size():
    with opened(1) as ports, host_at(ports, 1) as host:
        ports.resize(packet_bytes(300))
        host.send(packets(2))
        host.resize(packet_bytes(300))
        host.send(packets(3, size=packet_bytes(300)))
        frames = ports.receive([1])
        assert frames.length.tolist() == [FRAME_HEADER_BYTES + packet_bytes(300)] * 3
        assert ports.ports[1].counts.odd == 2


def test_a_call_answers_so_many_hellos_at_most():
    with opened(1, offload=False) as ports, host_at(ports, 1) as host:
        for _ in range(100):
            host.send_hello()
        host.send(packets(1))
        assert len(ports.receive([1])) == 0
        assert ports.ports[1].counts.hellos == 1 + 64
        assert len(ports.receive([1])) == 1
        assert ports.ports[1].counts.hellos == 1 + 100


def test_a_port_that_was_joined_says_hello_until_the_other_answers():
    with opened(1) as ports, BatchSocket.bind(("127.0.0.1", 0), SIZE) as other, host_at(ports, 1) as host:
        host.send(packets(2))
        frames = ports.receive([1])
        ports.ports[1].join(other.address)
        ports.send(frames)
        bursts = [other.receive() for _ in range(3)]
        assert [len(burst.packets) for burst in bursts if burst is not None] == [0, 0, 2]
        other.connect(("127.0.0.1", ports.listening[1]))
        other.send_hello()
        ports.receive([1])
        ports.send(frames)
        assert [len(burst.packets) for burst in [other.receive()] if burst is not None] == [2]
        assert other.receive() is None


def test_a_switch_that_was_started_again_gets_a_hello_when_it_has_been_silent_for_a_second():
    sent = packets(3)
    with opened(1, 2) as near, opened(1) as far, host_at(near, 2) as host:
        near.ports[1].join(("127.0.0.1", far.listening[1]))
        far.receive([1])
        near.receive([1])  # the answer

        def arrived():
            host.send(sent)
            frames = near.receive([2])
            frames.port[:] = 1
            near.send(frames)
            return len(far.receive([1]).port)

        arrived()  # takes the first silence
        assert arrived() == 3
        far.sockets.peers[:] = 0  # as after its start
        assert arrived() == 0
        near.sockets.state[0, udp_kernels.UdpColumn.ACTIVE_AT] -= udp_kernels.SILENCE_NS
        assert arrived() == 3

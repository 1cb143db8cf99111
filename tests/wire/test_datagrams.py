"""Batches over real loopback sockets: order, offload, hellos, odd sizes, several sources; and MTUs."""

import contextlib
import errno
import logging
import socket
import subprocess

import networks
import numpy as np
import pytest

from peelsum.softswitch.ports.interfaces import InterfacePorts
from peelsum.topology import namespaces
from peelsum.transport.errors import SwitchUnreachableError
from peelsum.transport.link import PortLink
from peelsum.wire import COMPILED_LANES, packet_bytes
from peelsum.wire.datagrams import MAX_DATAGRAM, BatchSocket, Burst
from peelsum.wire.mtu import mtu_of, path_mtu_error

SIZES = (1, 144, 1040, 40000, MAX_DATAGRAM)


def batch_of(count, size, seed=1):
    return np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)


@contextlib.contextmanager
def pair(size, offload_in=None, offload_out=None, burst=1024):
    with (
        BatchSocket.bind(("127.0.0.1", 0), size, offload=offload_in, burst=burst) as into,
        BatchSocket.bind(("127.0.0.1", 0), size, offload=offload_out) as out,
    ):
        out.connect(into.address)
        yield into, out


def drain(sock):
    """Return everything that has arrived, copied out of the socket's buffer."""
    bursts = []
    while (burst := sock.receive()) is not None:
        bursts.append(Burst(burst.packets.copy(), burst.source))
    return bursts


@pytest.mark.parametrize("offload_in", [None, False])
@pytest.mark.parametrize("offload_out", [None, False])
@pytest.mark.parametrize("size", SIZES)
def test_packets_arrive_whole_and_in_order(size, offload_in, offload_out):
    count = min(200, 200_000 // size)
    sent = batch_of(count, size)
    with pair(size, offload_in, offload_out) as (into, out):
        assert out.send(sent) == count
        assert not (out.offload and offload_out is False)
        assert not (into.offload and offload_in is False)
        bursts = drain(into)
        assert {burst.source for burst in bursts} == {out.address}
        assert np.array_equal(np.concatenate([burst.packets for burst in bursts]), sent)
        assert into.odd == 0


def test_an_empty_batch_sends_nothing_and_nothing_there_is_none():
    with pair(64) as (into, out):
        assert out.send(batch_of(0, 64)) == 0
        assert into.receive() is None


@pytest.mark.parametrize("offload", [None, False])
def test_a_hello_is_reported_between_packets(offload):
    with pair(100, offload, offload) as (into, out):
        first, second = batch_of(3, 100, 1), batch_of(2, 100, 2)
        out.send_hello()
        out.send(first)
        out.send_hello()
        out.send(second)
        bursts = drain(into)
        assert [burst.hello for burst in bursts] == [True, False, True, False]
        assert [len(burst.packets) for burst in bursts] == [0, 3, 0, 2]
        assert np.array_equal(bursts[1].packets, first)
        assert np.array_equal(bursts[3].packets, second)


@pytest.mark.parametrize("offload", [None, False])
def test_sources_are_kept_apart(offload):
    with (
        pair(80, offload, offload) as (into, first),
        BatchSocket.bind(("127.0.0.1", 0), 80, offload=offload) as second,
    ):
        for seed in range(6):
            (first, second)[seed % 2].send(batch_of(4, 80, seed), into.address)
        bursts = drain(into)
        assert [burst.source for burst in bursts] == [first.address, second.address] * 3
        for seed, burst in enumerate(bursts):
            assert np.array_equal(burst.packets, batch_of(4, 80, seed))


@pytest.mark.parametrize("offload", [None, False])
def test_odd_sizes_are_counted_and_left_out(offload):
    with pair(100, offload, offload) as (into, out):
        good = batch_of(2, 100)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for length in (1, 99, 101, 200, 5000):
                stranger.sendto(b"\xff" * length, into.address)
        out.send(good)
        (burst,) = drain(into)
        assert np.array_equal(burst.packets, good)
        assert into.odd == 5


def test_a_burst_is_bounded_and_loses_nothing():
    sent = batch_of(40, 50)
    with pair(50, False, False, burst=16) as (into, out):
        out.send(sent)
        taken = []
        while (burst := into.receive()) is not None:
            assert len(burst.packets) <= 16
            taken.append(burst.packets.copy())
        assert len(taken) == 3
        assert np.array_equal(np.concatenate(taken), sent)


class StubbornSocket(socket.socket):
    """A socket whose device accepts the option, and then at most this many bytes per send."""

    refusal = errno.EINVAL
    most = 100

    def send(self, data, flags=0):
        if len(data) > self.most:
            raise OSError(self.refusal, "no segmentation here")
        return super().send(data, flags)


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EIO, errno.EMSGSIZE])
@pytest.mark.parametrize(("most", "offload"), [(100, False), (64 * 100, True)])
def test_a_device_that_refuses_segments_gets_fewer_or_none(refusal, most, offload):
    stubborn = StubbornSocket(socket.AF_INET, socket.SOCK_DGRAM)
    stubborn.refusal, stubborn.most = refusal, most
    sent = batch_of(200, 100)
    with BatchSocket.bind(("127.0.0.1", 0), 100) as into, BatchSocket(stubborn, 100) as out:
        if not out.offload:
            pytest.skip("this kernel has no UDP_SEGMENT to refuse")
        out.connect(into.address)
        assert out.send(sent) == 200
        assert out.offload is offload
        assert np.array_equal(np.concatenate([burst.packets for burst in drain(into)]), sent)


class FullSocket(socket.socket):
    """A socket with room for one more send."""

    room = 1

    def send(self, data, flags=0):
        if not self.room:
            raise BlockingIOError(errno.EAGAIN, "full")
        self.room -= 1
        return super().send(data, flags)


@pytest.mark.parametrize("offload", [None, False])
def test_a_full_buffer_stops_the_send_says_how_far_it_came_and_refuses_no_segments(offload):
    full = FullSocket(socket.AF_INET, socket.SOCK_DGRAM)
    sent = batch_of(400, 100)
    with BatchSocket.bind(("127.0.0.1", 0), 100) as into, BatchSocket(full, 100, offload=offload) as out:
        out.connect(into.address)
        before = out.offload, out.segments
        assert out.send(sent) == out.segments
        assert (out.offload, out.segments) == before
        (burst,) = drain(into)
        assert np.array_equal(burst.packets, sent[: out.segments])


@contextlib.contextmanager
def receiver(size, room, offload=None):
    """A socket that asks for a receive buffer of `room` bytes."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    with BatchSocket(sock, size, buffer_bytes=0, offload=offload) as into:
        yield into


def test_an_overrun_receiver_is_counted():
    with BatchSocket.bind(("127.0.0.1", 0), 1000) as out, receiver(1000, 4096) as into:
        out.send(batch_of(100, 1000), into.address)
        arrived = sum(len(burst.packets) for burst in drain(into))
        assert arrived < 100
        assert into.overruns > 0


@pytest.mark.parametrize("offload", [None, False])
@pytest.mark.parametrize("size", [144, 1040])
def test_as_much_as_there_is_room_for_is_kept(size, offload):
    with (
        BatchSocket.bind(("127.0.0.1", 0), size, offload=offload) as out,
        receiver(size, 100_000, offload) as into,
    ):
        for share in np.array_split(batch_of(into.room, size), 8):
            out.send(share, into.address)
        assert sum(len(burst.packets) for burst in drain(into)) == into.room
        assert into.overruns == 0


def test_a_peer_that_is_gone_stops_neither_direction():
    gone = BatchSocket.bind(("127.0.0.1", 0), 100)
    with BatchSocket.bind(("127.0.0.1", 0), 100) as sock:
        sock.connect(gone.address)
        gone.close()
        for _ in range(3):
            assert sock.send(batch_of(2, 100)) == 2
        assert sock.receive() is None


def test_a_resized_socket_takes_the_new_size_only():
    with pair(100) as (into, out):
        out.send(batch_of(5, 100))
        into.resize(50)
        out.resize(50)
        out.send(batch_of(70, 50))
        assert np.array_equal(np.concatenate([burst.packets for burst in drain(into)]), batch_of(70, 50))
        assert into.odd == 5


@pytest.mark.parametrize("size", [0, -1, MAX_DATAGRAM + 1])
def test_a_size_that_fits_no_datagram_is_refused(size):
    with pytest.raises(ValueError, match=f"packet_bytes: {size} fits no datagram; use 1 to"):
        BatchSocket.bind(("127.0.0.1", 0), size)


@pytest.mark.parametrize("shape", [(3, 99), (100,), (1, 2, 100)])
def test_a_batch_of_other_rows_is_refused(shape):
    with pair(100) as (_, out), pytest.raises(ValueError, match="this socket sends uint8"):
        out.send(np.zeros(shape, np.uint8))


def test_a_port_in_use_is_named_with_what_to_do():
    with BatchSocket.bind(("127.0.0.1", 0), 100) as holder:
        port = holder.address[1]
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}: .*choose another") as caught:
            BatchSocket.bind(holder.address, 100)
        assert caught.value.errno == errno.EADDRINUSE
    with BatchSocket.bind(("127.0.0.1", port), 100) as again:
        assert again.address == ("127.0.0.1", port)


def test_a_batch_with_gaps_in_memory_is_sent_as_its_rows():
    with pair(100) as (into, out):
        wide = batch_of(10, 200)
        out.send(wide[::2, 50:150])
        (burst,) = drain(into)
        assert np.array_equal(burst.packets, wide[::2, 50:150])


def small_mtu():
    """A host whose interface to the switch has an MTU of one byte less than 512 lanes need."""
    namespaces.add_wire("eth7", "far")
    subprocess.run(["ip", "link", "set", "eth7", "mtu", "2091"], check=True)
    subprocess.run(["ip", "address", "add", "10.9.0.1/24", "dev", "eth7"], check=True)
    there = ("10.9.0.2", 9999)
    said = []
    for wire in ("udp-port", "ethernet"):
        try:
            PortLink(there, packet_bytes(512), hello_s=0.1, wire=wire)
        except SwitchUnreachableError as error:
            said.append(str(error))
    fits = path_mtu_error(there, packet_bytes(256))
    subprocess.run(["ip", "link", "set", "eth7", "mtu", "2092"], check=True)
    return {"said": said, "fits": [fits, path_mtu_error(there, packet_bytes(512))]}


def of_a_switch():
    """A switch loads a pipeline whose packets one of its interfaces cannot carry."""
    for port in (1, 2):
        namespaces.add_wire(f"switch{port}", f"host{port}")
    subprocess.run(["ip", "link", "set", "switch2", "mtu", "1500"], check=True)
    ports, said = InterfacePorts({1: "switch1", 2: "switch2"}, method="packet"), []
    logging.getLogger("peelsum").addFilter(lambda record: said.append(record.getMessage()))
    ports.resize(packet_bytes(512))
    subprocess.run(["ip", "link", "set", "switch2", "mtu", "9000"], check=True)
    ports.resize(packet_bytes(512))
    return {"said": said}


def other_ways():
    """The interface's second address is on the way, and then a route with an MTU of its own."""
    namespaces.add_wire("eth7", "far")
    subprocess.run(["ip", "link", "set", "eth7", "mtu", "1500"], check=True)
    for address in ("10.8.0.1/24", "10.9.0.1/24"):
        subprocess.run(["ip", "address", "add", address, "dev", "eth7"], check=True)
    second = path_mtu_error(("10.9.0.2", 9), packet_bytes(512))
    subprocess.run(["ip", "link", "set", "eth7", "mtu", "9000"], check=True)
    subprocess.run(["ip", "route", "add", "10.9.0.3", "dev", "eth7", "mtu", "1400"], check=True)
    return {"said": [second, path_mtu_error(("10.9.0.3", 9), packet_bytes(512))]}


REMEDY = "set it on all interfaces of the route (`ip link set {0} mtu 2092`), or use fewer lanes"


def test_packets_longer_than_the_mtu_are_an_error_at_the_start():
    expected = "interface eth7: MTU 2091, but packets of 512 lanes need 2092; " + REMEDY.format("eth7")
    assert networks.alone(__file__, "small_mtu") == {"said": [expected] * 2, "fits": [None, None]}


def test_a_switch_names_interfaces_with_a_smaller_mtu():
    expected = "port 2: interface switch2: MTU 1500, but packets of 512 lanes need 2092; " + REMEDY
    opened_for = (
        "port 2: interface switch2: its MTU was smaller when the switch started, which receives no frames of "
        "more than 1982 bytes; start it again"
    )
    assert networks.alone(__file__, "of_a_switch") == {"said": [expected.format("switch2"), opened_for]}


def test_the_interface_or_the_route_is_named():
    first, second = networks.alone(__file__, "other_ways")["said"]
    assert first.startswith("interface eth7: MTU 1500, but packets of 512 lanes need 2092; ")
    assert second == (
        "route to 10.9.0.3: MTU 1400, but packets of 512 lanes need 2092; see `ip route get 10.9.0.3`, "
        "or use fewer lanes"
    )


def test_loopback_takes_all_of_them_and_an_unknown_interface_is_an_error():
    assert path_mtu_error(("127.0.0.1", 9), packet_bytes(max(COMPILED_LANES))) is None
    assert mtu_of("lo") == 65536
    with pytest.raises(OSError, match="No such device"):
        mtu_of("nowhere")


if __name__ == "__main__":
    networks.main(globals())

"""What a client cannot use up: memory, threads, connections, log lines."""

import logging
import socket
import threading

import grpc
import psutil
import pytest
from finsy.proto import U128, p4r
from p4runtime_client import WAIT_S, Client, FakeCall
from patience import PATIENCE_S

from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.p4runtime import service as service_module
from peelsum.softswitch.p4runtime.status import MOST_LINES, WITHIN_S, Seldom
from peelsum.softswitch.p4runtime.stream import MOST_BYTES, MOST_WAITING, ControllerStream
from peelsum.tls import grpc_ends

MEGABYTE = 1 << 20


def message(size):
    return p4r.StreamMessageResponse(error=p4r.StreamError(message="x" * size))


def test_a_stream_whose_client_does_not_read_is_cut():
    cuts = []
    stream = ControllerStream(lambda: cuts.append(True))
    for _ in range(2 * MOST_WAITING):
        stream.send(message(1))
    assert not stream.send_packet(p4r.PacketIn())
    assert cuts == []
    stream.send(message(1))
    assert cuts == [True]
    assert len(list(stream.responses())) == 2 * MOST_WAITING


def test_a_few_long_messages_are_too_many_too_and_room_comes_back():
    cuts = []
    stream = ControllerStream(lambda: cuts.append(True))
    responses = stream.responses()
    for _ in range(3):
        for _ in range(MOST_BYTES // MEGABYTE - 1):
            stream.send(message(MEGABYTE))
        assert not stream.send_packet(p4r.PacketIn(payload=b"x" * 2 * MEGABYTE))
        for _ in range(MOST_BYTES // MEGABYTE - 1):
            next(responses)
    assert cuts == []


def test_memory_does_not_grow_for_a_client_that_never_reads(client, server):
    """It sends packets that are refused with a copy, and reads nothing: it is cut, or HTTP/2 holds it up."""
    wrong = p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=b"x" * 60_000))
    ended, sent, before = threading.Event(), 0, psutil.Process().memory_info().rss

    def messages():
        nonlocal sent
        while not ended.is_set():
            yield wrong
            sent += 1

    call = client.stub.StreamChannel(messages())
    call.add_callback(ended.set)
    seen = -1
    while sent != seen and not ended.wait(0.3):
        seen = sent
    # Server and client share this process: both ends' buffers are counted.
    assert psutil.Process().memory_info().rss - before < 8 * MOST_BYTES
    assert sent
    client.write()
    call.cancel()


def test_a_message_beyond_the_limit_is_refused(client):
    config = p4r.ForwardingPipelineConfig(p4_device_config=bytes(17 * MEGABYTE))
    with pytest.raises(grpc.RpcError) as error:
        client.set_pipeline(config)
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    client.write()


def test_who_does_not_take_an_answer_in_time_is_cut_off(device, monkeypatch):
    monkeypatch.setattr(service_module, "_ENTITIES_PER_RESPONSE", 2)
    monkeypatch.setattr(service_module, "READ_S", 0.05)
    service, call = service_module.P4RuntimeService(device, secured=False), FakeCall()
    reading = service._sent(iter([p4r.Entity()] * 9), call)
    next(reading)
    assert call.ended.wait(WAIT_S)
    reading.close()


def test_beyond_so_many_slow_reads_the_newest_is_refused(device):
    service = service_module.P4RuntimeService(device, secured=False)
    open_ones = [service._sent(iter([p4r.Entity()]), FakeCall()) for _ in range(service_module.MAX_READS)]
    for one in open_ones:
        next(one)
    with pytest.raises(service_module.RequestError, match="16 Reads are being answered"):
        next(service._sent(iter([p4r.Entity()]), FakeCall()))
    open_ones.pop().close()
    next(service._sent(iter([p4r.Entity()]), FakeCall()))


def answer(stream):
    try:
        return stream.receive()
    except grpc.RpcError as error:
        return error.code().name


def test_streams_beyond_the_limit_are_refused_and_writes_go_on(client, connect):
    others = [connect(0) for _ in range(4)]
    bid = p4r.MasterArbitrationUpdate(device_id=1, election_id=U128.encode(0))
    streams = []
    for number in range(service_module.MAX_STREAMS + 8):
        streams.append(others[number % 4].stream())
        streams[-1].send(arbitration=bid)
    # The client has one, too.
    assert [answer(stream) for stream in streams].count("RESOURCE_EXHAUSTED") == 9
    client.write()


def test_connections_that_say_nothing_are_closed(device, monkeypatch):
    monkeypatch.setattr(grpc_ends, "HANDSHAKE_MS", 300)
    server = serve(device, "127.0.0.1:0")
    host, _, port = server.address.rpartition(":")
    silent = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(50)]
    client = Client(server.address)
    client.become_primary()
    for one in silent:
        while one.recv(4096):  # the server's settings, then its end
            pass
        one.close()
    client.channel.close()
    server.stop()


def test_connections_beyond_the_limit_are_closed_and_open_ones_go_on(device, monkeypatch):
    monkeypatch.setattr(grpc_ends, "MOST_CONNECTIONS", 10)
    server = serve(device, "127.0.0.1:0")
    host, _, port = server.address.rpartition(":")
    client = Client(server.address)
    client.become_primary()
    strangers = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(20)]

    def closed(one):
        try:
            return not one.recv(4096)
        except ConnectionError:
            return True

    assert sum(closed(one) for one in strangers) == 11
    assert client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=WAIT_S).p4runtime_api_version
    for one in strangers:
        one.close()
    client.channel.close()
    server.stop()


def test_a_flood_of_errors_is_a_few_lines():
    now = 0.0
    seldom, logger = Seldom(lambda: now), logging.Logger("here")
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    logger.addFilter(seldom)
    for number in range(1000):
        logger.warning("error %d", number)
    assert lines == [f"error {number}" for number in range(MOST_LINES)]
    now = WITHIN_S
    logger.warning("error %d", 1000)
    assert lines[-1] == "error 1000 (before it, 980 lines were not logged)"

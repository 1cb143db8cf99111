"""What a client cannot use up: memory, threads, connections, log lines."""

import logging
import socket

import grpc
import pytest
from finsy.proto import U128, p4r
from p4runtime_client import WAIT_S, Client
from patience import PATIENCE_S

from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.p4runtime import service as service_module
from peelsum.softswitch.p4runtime.status import INTERVAL_S, MOST_RECORDS, RateLimit
from peelsum.softswitch.p4runtime.stream import MOST_WAITING, ControllerStream
from peelsum.tls import grpc_ends

MEGABYTE = 1 << 20


def test_the_call_of_a_client_that_does_not_read_is_cancelled():
    cancels = []
    stream, message = ControllerStream(lambda: cancels.append(True)), p4r.StreamMessageResponse()
    for _ in range(2 * MOST_WAITING):
        stream.send(message)
    assert not stream.send_packet(p4r.PacketIn())
    assert cancels == []
    stream.send(message)
    assert cancels == [True]
    assert len(list(stream.responses())) == 2 * MOST_WAITING


def test_a_message_beyond_the_limit_is_refused(client):
    config = p4r.ForwardingPipelineConfig(p4_device_config=bytes(17 * MEGABYTE))
    with pytest.raises(grpc.RpcError) as error:
        client.set_pipeline(config)
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    client.write()


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
    connections = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(50)]
    client = Client(server.address)
    client.become_primary()
    for connection in connections:
        while connection.recv(4096):  # the server's settings, then its end
            pass
        connection.close()
    client.channel.close()
    server.stop()


def test_connections_beyond_the_limit_are_closed_and_open_ones_go_on(device, monkeypatch):
    monkeypatch.setattr(grpc_ends, "MAX_CONNECTIONS", 10)
    server = serve(device, "127.0.0.1:0")
    host, _, port = server.address.rpartition(":")
    client = Client(server.address)
    client.become_primary()
    connections = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(20)]

    def closed(connection):
        try:
            return not connection.recv(4096)
        except ConnectionError:
            return True

    assert sum(closed(connection) for connection in connections) == 11
    assert client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=WAIT_S).p4runtime_api_version
    for connection in connections:
        connection.close()
    client.channel.close()
    server.stop()


def test_a_flood_of_errors_is_a_few_lines():
    now = 0.0
    rate_limit, logger = RateLimit(lambda: now), logging.Logger("here")
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    logger.addFilter(rate_limit)
    for number in range(1000):
        logger.warning("error %d", number)
    assert lines == [f"error {number}" for number in range(MOST_RECORDS)]
    now = INTERVAL_S
    logger.warning("error %d", 1000)
    assert lines[-1] == "error 1000 (before it, 980 lines were not logged)"

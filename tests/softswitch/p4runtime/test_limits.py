"""Limits of streams, connections, messages and log lines; the queue of requests, and calls that end in it."""

import logging
import socket
import threading

import grpc
from finsy.proto import U128, p4r
from p4runtime_client import WAIT_S, Client, FakeCall, status_of
from patience import PATIENCE_S

from peelsum.logs import INTERVAL_S, MOST_RECORDS, RateLimit
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.p4runtime import service as service_module
from peelsum.softswitch.p4runtime.service import RequestQueue
from peelsum.softswitch.p4runtime.status import Code, RequestError
from peelsum.softswitch.p4runtime.stream import MOST_WAITING, ControllerStream
from peelsum.tls import grpc_ends

MEGABYTE = 1 << 20


def test_the_call_of_a_client_that_does_not_read_is_cancelled():
    cancels = []
    stream, message = ControllerStream(lambda: cancels.append(True)), p4r.StreamMessageResponse()
    for _ in range(2 * MOST_WAITING):
        stream.send(message)
    assert not stream.send_or_drop(p4r.StreamMessageResponse(packet=p4r.PacketIn()))
    assert cancels == []
    stream.send(message)
    assert cancels == [True]
    assert len(list(stream.responses())) == 2 * MOST_WAITING


def test_a_message_beyond_the_limit_is_refused(client):
    config = p4r.ForwardingPipelineConfig(p4_device_config=bytes(17 * MEGABYTE))
    assert status_of(lambda: client.set_pipeline(config))[0] == "RESOURCE_EXHAUSTED"
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


def test_a_flood_of_errors_is_a_few_lines(caplog):
    now = 0.0
    rate_limit, logger = RateLimit(lambda: now), logging.Logger("here")
    logger.addHandler(caplog.handler)
    logger.addFilter(rate_limit)
    for number in range(1000):
        logger.warning("error %d", number)
    assert caplog.messages == [f"error {number}" for number in range(MOST_RECORDS)]
    now = INTERVAL_S
    logger.warning("error %d", 1000)
    assert caplog.messages[-1] == "error 1000 (before it, 980 lines were not logged)"


class WatchedCall(FakeCall):
    """A call that shows when it is first asked whether it is active, which a request asks while it waits."""

    def __init__(self):
        super().__init__()
        self.waits = threading.Event()

    def is_active(self):
        self.waits.set()
        return super().is_active()


class Waiting:
    """Start a request in a thread; it appends its name to `order` when it runs."""

    def __init__(self, queue, name, order, updates=0):
        self.call, self.error = WatchedCall(), None
        self._queue, self._name, self._order, self._updates = queue, name, order, updates
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self.call.waits.wait(PATIENCE_S)

    def _run(self):
        try:
            with self._queue.turn(self.call, self._updates):
                self._order.append(self._name)
        except RequestError as error:
            self.error = error


def joined(*requests):
    for request in requests:
        request.thread.join(PATIENCE_S)
        assert not request.thread.is_alive()


def test_a_long_batch_is_passed_for_as_long_as_it_takes_and_no_longer(monkeypatch):
    clock = iter([0.0, 0.0, 0.4, 0.6])
    monkeypatch.setattr("peelsum.softswitch.p4runtime.service.monotonic", lambda: next(clock))
    queue, order = RequestQueue(9), []
    with queue.turn(FakeCall()):
        requests = [Waiting(queue, name, order, n) for name, n in (("long", 1000), ("soon", 1), ("late", 1))]
    joined(*requests)
    assert order == ["soon", "long", "late"]


def test_a_call_that_ends_gives_up_its_place():
    queue, order = RequestQueue(9), []
    with queue.turn(FakeCall()):
        ended, next_one = Waiting(queue, "ended", order), Waiting(queue, "next", order)
        ended.call.cancel()
        joined(ended)
        assert ended.error.code == Code.CANCELLED
        assert order == []
    joined(next_one)
    assert order == ["next"]


def test_beyond_the_most_that_wait_the_newest_is_refused_at_once():
    queue, order = RequestQueue(3), []
    with queue.turn(FakeCall()):
        requests = [Waiting(queue, name, order) for name in "abcde"]
        joined(*requests[3:])
        for refused in requests[3:]:
            assert refused.error.code == Code.RESOURCE_EXHAUSTED
            assert refused.error.message.startswith("3 requests wait for their turn already")
            assert "await answers" in refused.error.message
    joined(*requests)
    assert order == list("abc")
    with queue.turn(FakeCall()):
        pass


def test_a_short_batch_takes_the_place_of_a_long_one_where_all_are_taken():
    queue, order = RequestQueue(2), []
    with queue.turn(FakeCall()):
        long_ones = [Waiting(queue, f"long {number}", order, 100_000) for number in range(2)]
        short = Waiting(queue, "short", order, 1)
        joined(long_ones[1])
        assert long_ones[1].error.code == Code.RESOURCE_EXHAUSTED
    joined(short, long_ones[0])
    assert order == ["short", "long 0"]

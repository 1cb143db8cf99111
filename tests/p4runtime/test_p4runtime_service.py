"""Requests that wait or take long while others run, on the service without gRPC."""

import threading
from contextlib import contextmanager, suppress

import grpc
import pytest
from finsy.proto import U128, p4r
from p4runtime_client import Aborted, FakeCall, update
from patience import PATIENCE_S

from peelsum.softswitch.p4runtime import service as service_module
from peelsum.softswitch.p4runtime.pipeline import Pipeline
from peelsum.softswitch.p4runtime.service import P4RuntimeService
from peelsum.softswitch.p4runtime.stream import ControllerStream

Set = p4r.SetForwardingPipelineConfigRequest


@pytest.fixture
def service(device, schema):
    """Return a service with the test program committed, whose primary has election id 1."""
    service = P4RuntimeService(device, secured=False)
    bid(service, 1)
    request = configuration(schema, Set.VERIFY_AND_COMMIT)
    service.SetForwardingPipelineConfig(request, FakeCall())
    return service


def bid(service, election_id):
    stream = ControllerStream()
    service._arbiter.enter(stream)
    update = p4r.MasterArbitrationUpdate(device_id=1, election_id=U128.encode(election_id))
    service._arbiter.bid(stream, update)


def configuration(schema, action):
    config = schema.get_pipeline_config()
    return Set(device_id=1, election_id=U128.encode(1), action=action, config=config)


def group(number, port, kind="MODIFY"):
    entry = p4r.MulticastGroupEntry(multicast_group_id=number, replicas=[p4r.Replica(port=bytes([port]))])
    packets = p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)
    return update(kind, packet_replication_engine_entry=packets)


def writing(*updates):
    return p4r.WriteRequest(device_id=1, election_id=U128.encode(1), updates=updates)


@contextmanager
def started(service, method, request):
    """Run a request in a thread until it waits for its turn; yield its context."""
    context, before = FakeCall(), len(service._turns._waiting)

    def run():
        with suppress(Aborted):
            getattr(service, method)(request, context)

    thread = threading.Thread(target=run)
    thread.start()
    while len(service._turns._waiting) <= before:
        threading.Event().wait(0.001)
    yield context
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_short_write_passes_a_long_one_that_waits(service, device):
    service.Write(writing(group(1, 1, "INSERT")), FakeCall())
    turn = service._turns.turn(FakeCall())
    turn.__enter__()
    with (
        started(service, "Write", writing(*[group(1, 8)] * 20_000)),
        started(service, "Write", writing(group(1, 9))),
    ):
        turn.__exit__(None, None, None)
    assert device.switch.groups.get(1) == ((8, 0),)


def test_a_client_that_lost_the_election_while_waiting_does_not_write(service, device):
    turn = service._turns.turn(FakeCall())
    turn.__enter__()
    with started(service, "Write", writing(group(1, 8, "INSERT"))) as context:
        bid(service, 2)
        turn.__exit__(None, None, None)
    assert context.code == grpc.StatusCode.PERMISSION_DENIED
    assert device.switch.groups.ids() == []


@pytest.mark.parametrize("lost", ["the election", "its connection"])
def test_a_client_that_lost_something_while_compiling_does_not_commit(
    service, schema, device, monkeypatch, lost
):
    running, context = device.switch, FakeCall()

    def slowly(config, device):
        if lost == "the election":
            bid(service, 2)
        else:
            context.cancel()
        return Pipeline(config, device)

    monkeypatch.setattr(service_module, "Pipeline", slowly)
    with pytest.raises(Aborted):
        service.SetForwardingPipelineConfig(configuration(schema, Set.VERIFY_AND_COMMIT), context)
    assert lost != "the election" or context.code == grpc.StatusCode.PERMISSION_DENIED
    assert device.switch is running


def test_the_running_pipeline_is_written_while_another_is_compiled(service, schema, device, monkeypatch):
    running = device.switch

    def slowly(config, device):
        service.Write(writing(group(1, 8, "INSERT")), FakeCall())
        return Pipeline(config, device)

    monkeypatch.setattr(service_module, "Pipeline", slowly)
    service.SetForwardingPipelineConfig(configuration(schema, Set.VERIFY_AND_COMMIT), FakeCall())
    assert running.groups.ids() == [1]
    assert device.switch is not running


def test_an_answer_comes_in_messages_of_256_entities(service):
    service.Write(writing(*[group(number, 1, "INSERT") for number in range(1, 601)]), FakeCall())
    everything = p4r.PacketReplicationEngineEntry(multicast_group_entry=p4r.MulticastGroupEntry())
    request = p4r.ReadRequest(device_id=1, entities=[p4r.Entity(packet_replication_engine_entry=everything)])
    parts = list(service.Read(request, FakeCall()))
    assert [len(part.entities) for part in parts] == [256, 256, 88]


def test_a_read_sees_no_write_half_done(service):
    """A Read waits for a Write in progress."""
    seen = []
    everything = p4r.PacketReplicationEngineEntry(multicast_group_entry=p4r.MulticastGroupEntry())
    request = p4r.ReadRequest(device_id=1, entities=[p4r.Entity(packet_replication_engine_entry=everything)])

    class Watching(FakeCall):
        def is_active(self):
            if not seen and service._turns._taken:
                reading = threading.Thread(
                    target=lambda: seen.append(list(service.Read(request, FakeCall())))
                )
                seen.append(reading)
                reading.start()
                while not service._turns._waiting:
                    threading.Event().wait(0.001)
            return True

    service.Write(writing(*[group(number, 1, "INSERT") for number in (1, 2, 3)]), Watching())
    seen[0].join(PATIENCE_S)
    assert [len(part.entities) for part in seen[1]] == [3]

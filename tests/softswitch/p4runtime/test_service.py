"""Requests that wait or take long while others run, on the service without gRPC."""

import threading
from queue import SimpleQueue

import grpc
import pytest
from finsy.proto import U128, p4r
from p4runtime_client import WAIT_S, Aborted, FakeCall, update
from patience import PATIENCE_S

from peelsum.softswitch.p4runtime import service as service_module
from peelsum.softswitch.p4runtime.pipeline import InstalledPipeline
from peelsum.softswitch.p4runtime.service import P4RuntimeService

Set = p4r.SetForwardingPipelineConfigRequest
ALL_GROUPS = p4r.PacketReplicationEngineEntry(multicast_group_entry=p4r.MulticastGroupEntry())
READ = p4r.ReadRequest(device_id=1, entities=[p4r.Entity(packet_replication_engine_entry=ALL_GROUPS)])


class Client:
    """A stream of the service that has bid with an election id."""

    def __init__(self, service, election_id):
        self._requests = SimpleQueue()
        bid = p4r.MasterArbitrationUpdate(device_id=1, election_id=U128.encode(election_id))
        self._requests.put(p4r.StreamMessageRequest(arbitration=bid))
        self._responses = service.StreamChannel(iter(self._requests.get, None), FakeCall())
        assert next(self._responses).arbitration.status.code == 0

    def close(self):
        self._requests.put(None)
        list(self._responses)


@pytest.fixture
def service(device):
    return P4RuntimeService(device, secured=False)


@pytest.fixture
def become_primary(service):
    """Return a function that makes a client with this election id the primary."""
    clients = []
    yield lambda election_id: clients.append(Client(service, election_id))
    for client in clients:
        client.close()


@pytest.fixture(autouse=True)
def committed(service, become_primary, schema):
    """Commit the test program, by a primary with election id 1."""
    become_primary(1)
    service.SetForwardingPipelineConfig(configuration(schema), FakeCall())


def configuration(schema):
    config = schema.get_pipeline_config()
    return Set(device_id=1, election_id=U128.encode(1), action=Set.VERIFY_AND_COMMIT, config=config)


def writing(*numbers):
    """Return a Write of multicast groups."""
    groups = [{"multicast_group_id": number, "replicas": [{"port": b"\1"}]} for number in numbers]
    entries = [{"multicast_group_entry": group} for group in groups]
    updates = [update("INSERT", packet_replication_engine_entry=entry) for entry in entries]
    return p4r.WriteRequest(device_id=1, election_id=U128.encode(1), updates=updates)


class Interrupted(FakeCall):
    """A call of a Write that starts `work` in a thread after its first update, and calls `then` meanwhile."""

    def __init__(self, device, work, then=lambda: None):
        super().__init__()
        self._device, self._then, self.thread = device, then, threading.Thread(target=work)

    def is_active(self):
        if self.thread.ident is None and self._device.switch.groups.ids():
            self.thread.start()
            self.thread.join(0.2)  # times out, as it waits for the Write
            self._then()
        return True


def test_a_client_that_lost_the_election_while_waiting_does_not_write(service, become_primary, device):
    call, codes = FakeCall(), []

    def write():
        with pytest.raises(Aborted):
            service.Write(writing(9), call)
        codes.append(call.code)

    first = Interrupted(device, write, then=lambda: become_primary(2))
    service.Write(writing(1, 2, 3), first)
    first.thread.join(PATIENCE_S)
    assert codes == [grpc.StatusCode.PERMISSION_DENIED]
    assert device.switch.groups.ids() == [1, 2, 3]


def test_a_read_sees_no_write_half_done(service, device):
    seen = []
    call = Interrupted(device, lambda: seen.extend(service.Read(READ, FakeCall())))
    service.Write(writing(1, 2, 3), call)
    call.thread.join(PATIENCE_S)
    assert [len(part.entities) for part in seen] == [3]


@pytest.mark.parametrize("lost", ["the election", "its connection"])
def test_a_client_that_lost_something_while_compiling_does_not_commit(
    service, become_primary, schema, device, monkeypatch, lost
):
    running, context = device.switch, FakeCall()

    def slowly(config, device):
        if lost == "the election":
            become_primary(2)
        else:
            context.cancel()
        return InstalledPipeline(config, device)

    monkeypatch.setattr(service_module, "InstalledPipeline", slowly)
    with pytest.raises(Aborted):
        service.SetForwardingPipelineConfig(configuration(schema), context)
    assert lost != "the election" or context.code == grpc.StatusCode.PERMISSION_DENIED
    assert device.switch is running


def test_the_running_pipeline_is_written_while_another_is_compiled(service, schema, device, monkeypatch):
    running = device.switch

    def slowly(config, device):
        service.Write(writing(1), FakeCall())
        return InstalledPipeline(config, device)

    monkeypatch.setattr(service_module, "InstalledPipeline", slowly)
    service.SetForwardingPipelineConfig(configuration(schema), FakeCall())
    assert running.groups.ids() == [1]
    assert device.switch is not running


def test_an_answer_comes_in_messages_of_256_entities(service):
    service.Write(writing(*range(1, 601)), FakeCall())
    assert [len(part.entities) for part in service.Read(READ, FakeCall())] == [256, 256, 88]


def test_who_does_not_take_an_answer_in_time_is_cut_off(service, monkeypatch):
    monkeypatch.setattr(service_module, "READ_TIMEOUT_S", 0.05)
    service.Write(writing(*range(1, 601)), FakeCall())
    call = FakeCall()
    reading = service.Read(READ, call)
    next(reading)
    assert call.ended.wait(WAIT_S)
    reading.close()


def test_beyond_so_many_slow_reads_the_newest_is_refused(service):
    service.Write(writing(1), FakeCall())
    reads = [service.Read(READ, FakeCall()) for _ in range(service_module.MAX_READS)]
    for read in reads:
        next(read)
    with pytest.raises(Aborted, match="16 Reads are being answered"):
        next(service.Read(READ, FakeCall()))
    reads.pop().close()
    next(service.Read(READ, FakeCall()))

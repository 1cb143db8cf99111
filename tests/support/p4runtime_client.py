"""A bare P4Runtime client that can misbehave, and a data plane that runs when told to."""

import queue
import select
from threading import Event, Thread

import grpc
import pytest
from finsy.proto import U128, p4r, p4r_grpc, rpc_code, rpc_status
from patience import PATIENCE_S as WAIT_S

from peelsum.softswitch import Frames
from peelsum.wire import CPU_PORT


class Stream:
    """A client's end of StreamChannel."""

    def __init__(self, stub):
        self._outgoing = queue.SimpleQueue()
        self._incoming = queue.SimpleQueue()
        self._call = stub.StreamChannel(iter(self._outgoing.get, None))
        Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        try:
            for response in self._call:
                self._incoming.put(response)
            self._incoming.put(EOFError())
        except grpc.RpcError as error:
            self._incoming.put(error)

    def send(self, **update):
        self._outgoing.put(p4r.StreamMessageRequest(**update))

    def receive(self):
        """The next message; raises the RpcError that ended the stream, EOFError if it ended well."""
        item = self._incoming.get(timeout=WAIT_S)
        if isinstance(item, Exception):
            raise item
        return item

    def bid(self, election_id, device_id=1):
        """Bid and return the answer."""
        update = p4r.MasterArbitrationUpdate(device_id=device_id, election_id=U128.encode(election_id))
        self.send(arbitration=update)
        return self.receive().arbitration

    def close(self):
        """Half-close; the server then ends the stream."""
        self._outgoing.put(None)


class Client:
    """All RPCs, with an election id that is sent whether or not it was won."""

    def __init__(self, address, election_id=1):
        self.channel = grpc.insecure_channel(address)
        self.stub = p4r_grpc.P4RuntimeStub(self.channel)
        self.election_id = U128.encode(election_id)
        #: The stream that made this client the primary, if one did.
        self.primary = None

    def stream(self):
        return Stream(self.stub)

    def become_primary(self):
        self.primary = self.stream()
        assert self.primary.bid(U128.decode(self.election_id)).status.code == 0

    def set_pipeline(self, config, action="VERIFY_AND_COMMIT"):
        kind = p4r.SetForwardingPipelineConfigRequest
        fields = {"device_id": 1, "election_id": self.election_id, "action": kind.Action.Value(action)}
        request = kind(config=config, **fields)
        self.stub.SetForwardingPipelineConfig(request, timeout=WAIT_S)

    def get_pipeline(self, response_type="ALL"):
        kind = p4r.GetForwardingPipelineConfigRequest.ResponseType.Value(response_type)
        request = p4r.GetForwardingPipelineConfigRequest(device_id=1, response_type=kind)
        return self.stub.GetForwardingPipelineConfig(request, timeout=WAIT_S).config

    def write(self, *updates, **fields):
        request = p4r.WriteRequest(device_id=1, election_id=self.election_id, updates=updates, **fields)
        self.stub.Write(request, timeout=WAIT_S)

    def update(self, kind, **entity):
        """One update: `kind` is INSERT, MODIFY or DELETE, the entity goes by its name."""
        self.write(update(kind, **entity))

    def read(self, **entity):
        """Read one entity; return the messages of its kind."""
        request = p4r.ReadRequest(device_id=1, entities=[p4r.Entity(**entity)])
        (name,) = entity
        parts = self.stub.Read(request, timeout=WAIT_S)
        return [getattr(entity, name) for part in parts for entity in part.entities]


def ids_of(p4info):
    """Return the ids of all that a P4Info declares, by alias."""
    kinds = [items for field, items in p4info.ListFields() if field.is_repeated]
    declared = [item for items in kinds for item in items if hasattr(item, "preamble")]
    return {item.preamble.alias: item.preamble.id for item in declared}


def update(kind, **entity):
    return p4r.Update(type=p4r.Update.Type.Value(kind), entity=p4r.Entity(**entity))


def status_of(call):
    """The name of the status with which a call is refused, and its details."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code().name, error.value.details()


def refusal(client, kind, **entity):
    """The code's name and the message with which an update is refused."""
    with pytest.raises(grpc.RpcError) as error:
        client.update(kind, **entity)
    ((code, message),) = outcomes(error.value)
    return rpc_code.Code.Name(code), message


def outcomes(error):
    """Canonical code and message of each update, from a failed Write's trailing metadata."""
    status = rpc_status.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    errors = []
    for detail in status.details:
        unpacked = p4r.Error()
        assert detail.Unpack(unpacked)
        errors.append((unpacked.canonical_code, unpacked.message))
    return errors


def forward(device, now_us=0):
    """Run what controllers inject through the pipeline; returns (port, frame) of all that came out."""
    frames = []
    while not frames:  # a commit wakes too
        assert select.select([device], [], [], WAIT_S)[0]
        frames = device.take_injected()
    return process(device, frames, now_us)


def process(device, frames, now_us=0):
    """One batch of frames from the CPU port; returns (port, frame) of all that came out."""
    sent = device.switch.process(Frames.of([(CPU_PORT, frame) for frame in frames]), now_us).pairs()
    device.deliver_to_cpu([frame for port, frame in sent if port == CPU_PORT])
    return sent


class Aborted(Exception):  # noqa: N818 (the call is aborted)
    """The exception that gRPC's abort raises."""


class FakeCall:
    """A call without gRPC, which goes on until `ended` is set."""

    def __init__(self):
        self.ended, self.code, self._callbacks = Event(), None, []

    def is_active(self):
        return not self.ended.is_set()

    def peer(self):
        return "ipv4:127.0.0.1:9"

    def invocation_metadata(self):
        return ()

    def add_callback(self, callback):
        self._callbacks.append(callback)
        return True

    def cancel(self):
        self.ended.set()
        for callback in self._callbacks:
            callback()

    def set_trailing_metadata(self, metadata):
        pass

    def abort(self, code, details):
        self.code = code
        raise Aborted(details)

import select
import threading

from finsy.p4schema import P4Schema
from finsy.proto import p4r, rpc_code
from p4runtime_client import forward
from patience import PATIENCE_S

from peelsum.pipelines import pipeline
from peelsum.softswitch.p4runtime import service
from peelsum.softswitch.p4runtime.info import to_frame
from peelsum.softswitch.runtime.device import INJECTED_LIMIT

FRAME = bytes.fromhex("020000000001 020000000002 88b5") + b"payload"


def packet_out(payload=FRAME, **metadata):
    packet = p4r.PacketOut(payload=payload)
    for number, value in metadata.items():
        packet.metadata.add(metadata_id=int(number.removeprefix("m")), value=value)
    return packet


def test_a_packet_to_the_controller_brings_its_header_along(client, device):
    client.primary.send(packet=packet_out(m1=b"\xff"))
    assert len(forward(device)) == 1
    packet = client.primary.receive().packet
    assert packet.payload == FRAME
    assert [(item.metadata_id, item.value) for item in packet.metadata] == [(1, b"\xff"), (2, b"\0")]


def test_bad_packets_are_reported_and_the_stream_goes_on(client, device):
    twice = packet_out(m1=b"\1")
    twice.MergeFrom(packet_out(m1=b"\1"))
    for packet, why in (
        (packet_out(m1=b"\xff\xff"), "0xffff does not fit 9 bits"),
        (packet_out(m9=b"\1"), "has no metadata field 9"),
        (packet_out(bytes(65536)), "65536 bytes are too many; send up to 65535"),
        (twice, "a metadata field is given twice"),
    ):
        client.primary.send(packet=packet)
        error = client.primary.receive().error
        assert (error.canonical_code, why in error.message) == (rpc_code.INVALID_ARGUMENT, True)
        assert error.packet_out.packet_out == packet
    client.primary.send(packet=packet_out(bytes(65535), m1=b"\1"))
    assert forward(device) == [(1, bytes(65535))]


def test_only_the_primary_sends_and_gets_packets(client, connect, device):
    backup = connect(0).stream()
    backup.send(packet=packet_out(m1=b"\1"))
    assert backup.receive().error.canonical_code == rpc_code.PERMISSION_DENIED
    device.deliver_to_cpu([b"\0\0" + FRAME])
    assert client.primary.receive().packet.payload == FRAME


def test_without_a_header_the_frame_is_the_payload(connect, device):
    files = pipeline(32)
    client = connect()
    client.become_primary()
    client.set_pipeline(P4Schema(files.p4info_path, files.json_path.read_bytes()).get_pipeline_config())
    device.deliver_to_cpu([FRAME])
    packet = client.primary.receive().packet
    assert (packet.payload, list(packet.metadata)) == (FRAME, [])


def test_a_full_queue_is_reported(client, device):
    while device.inject(FRAME):
        pass
    client.primary.send(packet=packet_out())
    assert client.primary.receive().error.canonical_code == rpc_code.RESOURCE_EXHAUSTED
    assert len(device.take_injected()) == INJECTED_LIMIT


def test_packets_need_a_pipeline(connect, device):
    client = connect()
    client.become_primary()
    client.primary.send(packet=packet_out())
    assert client.primary.receive().error.canonical_code == rpc_code.FAILED_PRECONDITION
    assert device.take_injected() == []


def test_packets_that_waited_for_the_old_pipeline_are_dropped(client, schema, device):
    client.primary.send(packet=packet_out(m1=b"\5"))
    # The bid is answered after the packet before it was handled.
    client.primary.bid(1)
    client.set_pipeline(schema.get_pipeline_config())
    client.primary.send(packet=packet_out(m1=b"\6"))
    assert forward(device) == [(6, FRAME)]


def test_a_packet_does_not_enter_a_pipeline_that_it_was_not_made_for(client, device, monkeypatch):
    """Its header is that of the pipeline which ran when it came: a commit meanwhile drops it."""
    files, encoded, committed = pipeline(32), threading.Event(), threading.Event()
    schema = P4Schema(files.p4info_path, files.json_path.read_bytes())

    def slow(packet, info):
        frame = to_frame(packet, info)
        encoded.set()
        committed.wait(0.5)  # times out, as the commit waits for the packet
        return frame

    def commit():
        client.set_pipeline(schema.get_pipeline_config())
        committed.set()

    monkeypatch.setattr(service, "to_frame", slow)
    client.primary.send(packet=packet_out(m1=b"\1"))
    assert encoded.wait(PATIENCE_S)
    committing = threading.Thread(target=commit)
    committing.start()
    committing.join(PATIENCE_S)
    device.take_injected()  # the wake-up of the commit
    client.primary.send(packet=packet_out())
    assert select.select([device], [], [], PATIENCE_S)[0]
    assert device.take_injected() == [FRAME]

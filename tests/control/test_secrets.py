"""The secret of a job at UDP ports: a controller writes, replaces and removes it, and a Read shows none."""

from contextlib import closing

import pytest
from finsy.proto import p4r
from google.protobuf.any_pb2 import Any
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from p4runtime_client import Client, refusal
from patience import until

from peelsum.control.admission import Placement, restore
from peelsum.control.errors import DescriptionError
from peelsum.softswitch.ports.udp import UdpPorts
from peelsum.softswitch.runtime.device import Device
from peelsum.wire import SECRETS_EXTERN

pytestmark = pytest.mark.usefixtures("data_plane")


@pytest.fixture
def ports():
    with closing(UdpPorts(range(1, 10))) as ports:
        yield ports


@pytest.fixture
def device(ports):
    with closing(Device(mode="python", secret_ports=ports.ports)) as device:
        yield device


def secrets(ports):
    """Return the ports' secrets in hexadecimal, by port."""
    rows = [(row, number) for row, (number, port) in enumerate(ports.ports.items()) if port.has_secret]
    return {number: ports.sockets.secrets[row].tobytes().hex() for row, number in rows}


def test_every_admission_has_a_secret_of_its_own_until_the_job_is_evicted(controller, description, ports):
    first = controller.admit(description)
    assert secrets(ports) == dict.fromkeys((4, 5, 9), first.secret)
    assert first.secret not in repr(first)
    second = controller.admit(description)
    assert second.secret != first.secret
    assert secrets(ports) == dict.fromkeys((4, 5, 9), second.secret)
    controller.evict(3)
    assert secrets(ports) == {}
    (plan,) = description.plans()
    restore(Placement(controller.session, plan), second.generation, second.secret)
    assert secrets(ports) == dict.fromkeys((4, 5, 9), second.secret)


def test_another_job_gets_no_port_of_a_job(controller, description, ports):
    first = controller.admit(description)
    other = description.model_copy(update={"job": description.job.model_copy(update={"id": 7})})
    with pytest.raises(DescriptionError, match=r"ports: [459]: belongs to job 3; use another, or evict"):
        controller.admit(other)
    assert secrets(ports) == dict.fromkeys((4, 5, 9), first.secret)
    assert [job.job_id for job in controller.jobs()] == [3]


def test_ports_of_a_job_without_a_secret_stay_as_they_are(controller, description, ports):
    assert controller.admit(description, secret="").secret == ""
    assert secrets(ports) == {}


def extern(port, message=None, kind=SECRETS_EXTERN):
    value = Any()
    if message is not None:
        value.Pack(message)
    return p4r.ExternEntry(extern_type_id=kind, extern_id=port, entry=value)


def test_the_switch_takes_secrets_as_p4runtime_takes_entries_and_never_shows_one(controller, server, ports):
    controller.session.become_backup()
    until(lambda: not controller.session.has_primary(), "the switch has a primary still")
    client, value = Client(server.address), BytesValue(value=bytes(range(16)))
    with closing(client.channel):
        client.become_primary()
        client.update("INSERT", extern_entry=extern(2, value))
        assert refusal(client, "INSERT", extern_entry=extern(2, value))[0] == "ALREADY_EXISTS"
        for kind in ("MODIFY", "DELETE"):
            assert refusal(client, kind, extern_entry=extern(3, value))[0] == "NOT_FOUND"
        client.update("INSERT", extern_entry=extern(3, value))
        entries = [p4r.ExternEntry(extern_type_id=254, extern_id=one) for one in (2, 3)]
        assert client.read(extern_entry=extern(0)) == entries
        assert len(client.read(extern_entry=extern(3))) == 1
        for wrong in (
            None,
            StringValue(value="x" * 16),
            *(BytesValue(value=bytes(size)) for size in (15, 16)),
        ):
            assert refusal(client, "MODIFY", extern_entry=extern(2, wrong))[0] == "INVALID_ARGUMENT"
        assert refusal(client, "INSERT", extern_entry=extern(77, value))[0] == "INVALID_ARGUMENT"
        assert refusal(client, "INSERT", extern_entry=extern(1, value, kind=0x81))[0] == "UNIMPLEMENTED"
        client.update("DELETE", extern_entry=extern(3))
    assert secrets(ports) == {2: bytes(range(16)).hex()}

"""P4Runtime with TLS: only an operator changes anything, a viewer reads, everyone else is refused."""

import shutil
import time

import grpc
import pytest
from command_line import peelsum
from finsy.proto import U128, p4r, p4r_grpc
from p4runtime_client import status_of
from patience import PATIENCE_S
from primary import Primary

from peelsum.control import LeaseHeldError, SwitchError, open_session, read_status
from peelsum.pipelines import pipeline
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.process import StartError, run
from peelsum.switch_settings import SwitchSettings

FILES = pipeline(32)


@pytest.fixture
def server(device, identity):
    server = serve(device, "127.0.0.1:0", identity("switch"))
    yield server
    server.stop()


@pytest.fixture
def stub(server, identity):
    """Return a function that returns a bare client with the identity of this name."""
    channels = []

    def connected(name):
        who = identity(name)
        credentials = grpc.ssl_channel_credentials(*map(who.read_file, ("ca.pem", "key.pem", "cert.pem")))
        channels.append(grpc.secure_channel(server.address, credentials))
        return p4r_grpc.P4RuntimeStub(channels[-1])

    yield connected
    for channel in channels:
        channel.close()


def calls(stub):
    """Every RPC, by name, as a function without arguments."""
    bid = p4r.MasterArbitrationUpdate(device_id=1, election_id=U128.encode(9))
    messages = [p4r.StreamMessageRequest(arbitration=bid)]
    set_pipeline = p4r.SetForwardingPipelineConfigRequest(device_id=1)
    late = {"timeout": PATIENCE_S}
    return {
        "capabilities": lambda: stub.Capabilities(p4r.CapabilitiesRequest(), **late),
        "get": lambda: stub.GetForwardingPipelineConfig(
            p4r.GetForwardingPipelineConfigRequest(device_id=1), **late
        ),
        "read": lambda: list(stub.Read(p4r.ReadRequest(device_id=1), **late)),
        "write": lambda: stub.Write(p4r.WriteRequest(device_id=1), **late),
        "pipeline": lambda: stub.SetForwardingPipelineConfig(set_pipeline, **late),
        "stream": lambda: list(stub.StreamChannel(iter(messages), **late)),
    }


def test_an_operator_admits_and_a_viewer_looks(server, identity):
    with Primary(server.address, identity=identity("operator")) as operator:
        assert operator.load_pipeline(FILES.json_path, FILES.p4info_path)
    with open_session(server.address, identity=identity("viewer")) as viewer:
        assert read_status(viewer).lanes == 32


def test_a_viewer_who_writes_is_refused(server, device, stub, identity):
    answers = {name: status_of(call) for name, call in calls(stub("viewer")).items() if name not in READING}
    assert {code for code, _ in answers.values()} == {"PERMISSION_DENIED"}
    assert answers["write"][1] == (
        "write: needs a certificate of role operator; this client's has role viewer"
    )
    assert calls(stub("viewer"))["capabilities"]().p4runtime_api_version == "1.4.0"
    with pytest.raises(SwitchError, match="needs a certificate of role operator"):
        Primary(server.address, identity=identity("viewer"))
    assert device.switch is None


READING = ("capabilities", "get", "read")


def test_a_worker_may_not_even_look(stub):
    for call in calls(stub("worker")).values():
        code, said = status_of(call)
        assert code == "PERMISSION_DENIED"
        assert "this client's has role worker" in said


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        # The client finds that it does not know the switch's CA before the switch sees the client's.
        ("stranger", r"unable to get local issuer certificate|self.signed certificate in certificate chain"),
        ("expired-operator", "the other end refuses this certificate"),
        ("switch", "the other end refuses this certificate"),
    ],
)
def test_a_wrong_certificate_is_told_so_at_once(server, device, stub, identity, name, reason):
    began = time.monotonic()
    with pytest.raises(SwitchError, match=rf"TLS failed \(.*({reason})") as error:
        Primary(server.address, identity=identity(name), timeout_s=PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S / 2
    assert "\n" not in str(error.value)
    for call in calls(stub(name)).values():
        assert status_of(call)[0] == "UNAVAILABLE"
    assert device.switch is None


def test_a_ca_that_the_switch_does_not_trust(server, folders, identity, tmp_path):
    """The client trusts the switch; its own certificate is another CA's."""
    shutil.copytree(folders["stranger"], tmp_path / "mixed")
    shutil.copy(folders["operator"] / "ca.pem", tmp_path / "mixed")
    with pytest.raises(SwitchError, match="the other end refuses this certificate"):
        Primary(server.address, identity=type(identity("operator")).read(tmp_path / "mixed"))


def test_a_client_is_named_by_its_address_behind_tls(server, identity):
    with (
        open_session(server.address, identity=identity("operator")) as holder,
        open_session(server.address, identity=identity("operator")) as other,
    ):
        holder.acquire_lease(3)
        with pytest.raises(LeaseHeldError, match=r"process \d+ at 127\.0\.0\.1:\d+ holds this job"):
            other.acquire_lease(3)


def test_no_certificate(server, identity):
    with grpc.insecure_channel(server.address) as plain:
        assert status_of(calls(p4r_grpc.P4RuntimeStub(plain))["get"])[0] == "UNAVAILABLE"
    only_ca = grpc.ssl_channel_credentials(identity("operator").read_file("ca.pem"))
    with grpc.secure_channel(server.address, only_ca) as nameless:
        assert status_of(calls(p4r_grpc.P4RuntimeStub(nameless))["get"])[0] == "UNAVAILABLE"
    with pytest.raises(SwitchError, match=r"nothing answers P4Runtime at .*with TLS there, give --tls here"):
        Primary(server.address, timeout_s=0.5)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("worker", "has the certificate of a role that is not for this"),
        ("viewer", "has the certificate of a role that is not for this"),
        ("expired-switch", "certificate has expired"),
    ],
)
def test_who_poses_as_a_switch_is_refused(device, identity, name, reason):
    """An operator's certificate would do: operators listen too, and are trusted with switches anyway."""
    server = serve(device, "127.0.0.1:0", identity(name))
    try:
        with pytest.raises(SwitchError, match=rf"TLS failed \(.*{reason}"):
            open_session(server.address, identity=identity("viewer"))
    finally:
        server.stop()


@pytest.mark.parametrize("role", [None, "viewer"], ids=["plain", "TLS"])
def test_no_connection_goes_through_a_proxy_of_the_environment(device, identity, monkeypatch, role):
    monkeypatch.delenv("no_proxy", raising=False)
    for name in ("grpc_proxy", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server = serve(device, "127.0.0.1:0", role and identity("switch"))
    try:
        open_session(server.address, identity=role and identity(role)).close()
    finally:
        server.stop()


def test_plain_is_for_loopback_only(device, identity):
    with pytest.raises(ValueError, match=r"0\.0\.0\.0 is beyond loopback.*give --tls FOLDER"):
        serve(device, "0.0.0.0:0")
    with pytest.raises(StartError, match=r"P4Runtime address: 0.0.0.0 is beyond loopback"):
        run(SwitchSettings(1, "0.0.0.0:0", mode="python"))
    with pytest.raises(SwitchError, match=r"switch: 192\.0\.2\.1 is beyond loopback"):
        open_session("192.0.2.1:9559")
    serve(device, "0.0.0.0:0", identity("switch")).stop()


def test_the_command_line_looks_with_tls_or_says_what_is_missing(server, folders, identity):
    with Primary(server.address, identity=identity("operator")) as operator:
        operator.load_pipeline(FILES.json_path, FILES.p4info_path)
    ask = ("status", "--p4runtime", server.address, "--json", "--tls")
    assert '"lanes": 32' in peelsum(*ask, str(folders["viewer"])).stdout
    assert "ca.pem: No such file or directory" in peelsum(*ask, "/nowhere").stderr
    evicted = peelsum("job", "evict", "1", "--p4runtime", server.address, "--tls", str(folders["viewer"]))
    assert "needs a certificate of role operator" in evicted.stderr

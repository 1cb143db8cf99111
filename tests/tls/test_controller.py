"""`peelsum controller run` over TLS: who may change jobs, who may look, and who is turned away."""

from contextlib import closing

import pytest
from clusters import Controllers, answering, cluster_text

from peelsum.control import ControlError
from peelsum.control.cluster import Cluster, ControllerClient, Store, listening_socket
from peelsum.control.cluster.cluster import parse_cluster
from peelsum.softswitch.p4runtime import serve
from peelsum.tls import TlsError


@pytest.fixture
def cluster(tmp_path):
    """A controller that is not polled, and takes itself for the primary."""
    with Store(tmp_path / "state") as store:
        cluster = Cluster(parse_cluster(cluster_text(["127.0.0.1:1"])), store)
        cluster._epoch = 1
        yield cluster


def test_roles_and_certificates(cluster, identity):
    with answering(cluster, identity("operator")) as address:

        def asked(name):
            return ControllerClient([address], identity(name), patience_s=0.0)

        assert asked("operator").list()["jobs"] == asked("viewer").list()["jobs"] == []
        with pytest.raises(ControlError, match="is not admitted"):
            asked("operator").evict(3)
        for ask in (lambda: asked("viewer").evict(3), lambda: asked("viewer").admit("")):
            with pytest.raises(ControlError, match=r"needs a certificate of role operator; this .* viewer"):
                ask()
        with pytest.raises(
            ControlError, match=r"list needs a certificate of role operator or viewer; .*worker"
        ):
            asked("worker").list()
        for name in ("stranger", "expired-operator"):
            with pytest.raises(ControlError, match="TLS failed"):
                asked(name).list()
        with pytest.raises(ControlError, match="nothing answers at"):
            ControllerClient([address]).list()


def test_beyond_loopback_there_is_tls_only(identity):
    with pytest.raises(TlsError, match=r"--listen: 0.0.0.0 is beyond loopback"):
        listening_socket(("0.0.0.0", 0), None)


@pytest.mark.parametrize(("name", "up"), [("operator", 1), ("viewer", 0), ("stranger", 0)])
def test_it_keeps_switches_over_tls_as_an_operator_only(tmp_path, identity, device, name, up):
    server = serve(device, "127.0.0.1:0", identity("switch"))
    with closing(Controllers(tmp_path, [server.address], identity=identity(name))) as controllers:
        cluster = controllers.start()
        cluster.poll()
        assert cluster.totals()["up"] == up
    server.stop()

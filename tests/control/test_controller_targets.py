"""One controller on every switch: the same calls leave the same state."""

import pytest
from bmv2_process import running_bmv2
from patience import PATIENCE_S
from primary import Primary

from peelsum.control.sections import SwitchSection
from peelsum.control.session import Session
from peelsum.wire import Verdict


@pytest.fixture(params=["softswitch", "bmv2"])
def address(request, tmp_path):
    if request.param == "bmv2":
        with running_bmv2(tmp_path / "bmv2.log") as address:
            yield address
    else:
        request.getfixturevalue("data_plane")
        yield request.getfixturevalue("server").address


def test_a_job_is_admitted_again_and_evicted(address, files, description, freed):
    with Primary(address, timeout_s=PATIENCE_S) as controller:
        assert controller.load_pipeline(*files)
        assert not controller.load_pipeline(*files)
        first = controller.admit(description)
    with Primary(address) as controller:
        assert not controller.load_pipeline(*files)
        freed.clear()
        second = controller.admit(description)
        assert second.generation == (first.generation + 1) % (1 << 16)
        status = controller.status()
        (job,) = status.jobs
        assert (job.job_id, job.generation, job.expected_mask) == (3, second.generation, 0b11)
        assert (job.server_port, job.worker_ports) == (9, {0: 4, 1: 5})
        # Where registers can be read, only what the job left behind is freed, here nothing, and one free
        # slot, to read the slots' clock.
        assert len(freed) == (1 if status.slots_in_use is not None else status.slots)
        assert controller.verdicts()[Verdict.RESET_DONE] >= 2 * len(freed)
        controller.evict(3)
        assert controller.status().jobs == ()


def test_other_traffic_gets_its_routes_and_its_bridge(address, files, description):
    """Two admissions: the second replaces the routes, and has a default route."""
    own = {"mac": "2:0:0:0:0:ff", "ip": "10.0.0.254"}
    hop = {"port": 4, "mac": "2:0:0:0:0:4"}
    with Primary(address, timeout_s=PATIENCE_S) as controller:
        assert controller.load_pipeline(*files)
        for prefixes in (["10.0.1.0/24", "10.0.2.0/24"], ["0.0.0.0/0", "10.0.2.0/24"], ["0.0.0.0/0"]):
            fields = {"pipeline_lanes": 32, "address": own, "bridge": {"2:0:0:0:0:5": 5}}
            section = SwitchSection.model_validate(fields | {"routes": dict.fromkeys(prefixes, hop)})
            controller.admit(description.model_copy(update={"switch": section}))
    with Session(address, 1, timeout_s=PATIENCE_S) as session:
        (route,) = session.entries("routes")
        assert not route.match, "a route to everywhere matches nothing in particular"
        assert route.action.args == {"port": 4, "src_mac": 0x0200000000FF, "dst_mac": 0x020000000004}
        assert len(session.entries("bridge")) == 2

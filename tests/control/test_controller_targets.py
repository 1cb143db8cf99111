"""One controller, every target: the same calls leave the same state behind."""

import pytest
from bmv2_process import running_bmv2

from peelsum.control import Controller
from peelsum.wire import Verdict


@pytest.fixture(params=["embedded", "bmv2"])
def address(request, tmp_path):
    if request.param == "bmv2":
        with running_bmv2(tmp_path / "bmv2.log") as address:
            yield address
    else:
        request.getfixturevalue("data_plane")
        yield request.getfixturevalue("server").address


def test_a_job_is_admitted_again_and_evicted(address, files, description):
    with Controller.connect(address, timeout_s=10) as controller:
        assert controller.load_pipeline(*files)
        assert not controller.load_pipeline(*files)
        first = controller.admit(description)
    with Controller.connect(address) as controller:
        assert not controller.load_pipeline(*files)
        second = controller.admit(description)
        assert second.generation == (first.generation + 1) % (1 << 16)
        status = controller.status()
        (job,) = status.jobs
        assert (job.job_id, job.generation, job.expected_mask) == (3, second.generation, 0b11)
        assert (job.server_port, job.worker_ports) == (9, {0: 4, 1: 5})
        # Where registers can be read, only what the job left behind is freed, here nothing, and one free
        # slot, to read the slots' clock.
        resets = controller.verdicts()[Verdict.RESET_DONE]
        assert resets == 2 if status.slots_in_use is not None else resets >= 2 * status.slots
        controller.evict(3)
        assert controller.status().jobs == ()

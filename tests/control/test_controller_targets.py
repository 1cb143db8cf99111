"""One controller, every target: the same calls leave the same state behind."""

import shutil
import socket
import subprocess

import pytest

from peelsum.control import Controller
from peelsum.wire import Verdict

BMV2 = "simple_switch_grpc"


def _free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def bmv2(tmp_path):
    if shutil.which(BMV2) is None:
        pytest.skip(f"{BMV2} is not on PATH")
    address = _free_address()
    command = [BMV2, "--no-p4", "--device-id", "1", "--", "--grpc-server-addr", address, "--cpu-port", "255"]
    with (tmp_path / "bmv2.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield address
    process.terminate()
    process.wait(timeout=10)


@pytest.fixture(params=["embedded", "bmv2"])
def address(request):
    if request.param == "bmv2":
        return request.getfixturevalue("bmv2")
    request.getfixturevalue("data_plane")
    return request.getfixturevalue("server").address


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
        # Where registers can be read, only what the job left behind is freed: here nothing.
        resets = controller.verdicts()[Verdict.RESET_DONE]
        assert resets == 0 if status.slots_in_use is not None else resets >= status.slots
        controller.evict(3)
        assert controller.status().jobs == ()

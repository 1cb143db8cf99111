"""Further groups of a process group: each sums over the switch in a job of its own, as long as it lives."""

import json
from contextlib import closing

import psutil
import pytest
import torch_training as training
from served_job import ASK_S, Controlling, served_to_four
from torch_ranks import run_ranks
from typer.testing import CliRunner

from peelsum.cli.app import app
from peelsum.transport.lease import Lease

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("forked_children")]


def in_mesh(folder, spare):
    """What `training.in_mesh` returns on four ranks, if so many ports are spare, and what was admitted."""
    with served_to_four(folder, spare=spare) as (switch, _, environment):
        options = {"environments": [environment] * 4, "backend": "peelsum"}
        told = run_ranks(4, training.in_mesh, switch.p4runtime, **options)
        while {number for number, _ in switch.jobs} - {255}:
            pass  # the groups' leases have ended, and soon their jobs
        return told


#: Sums of the ranks 1, 2, 4 and 8 in rows and columns of two by two, and then of all.
SUMS = [[3, 5, 15], [3, 10, 15], [12, 5, 15], [12, 10, 15]]


def test_rows_and_columns_of_a_mesh_sum_at_the_same_time(tmp_path):
    for (sums, numbers, then, warnings), expected in zip(in_mesh(tmp_path, 12), SUMS, strict=True):
        assert sums == expected
        assert numbers == [251, 252, 253, 254, 255]
        assert then == [253, 254, 255]
        assert warnings == []


def test_hooks_of_groups_sum_in_jobs_of_their_own(tmp_path):
    """`over="switch"` with a `process_group` of two of four ranks."""
    with served_to_four(tmp_path) as (switch, _, environment):
        told = run_ranks(4, training.by_hooks_of_groups, switch.p4runtime, environments=[environment] * 4)
    assert told == [([1.5, -1.5], [253, 254])] * 2 + [([6.0, -6.0], [253, 254])] * 2


def test_jobs_of_a_controller_that_was_killed_are_evicted_by_the_next_one(tmp_path):
    with served_to_four(tmp_path) as (switch, controller, _):
        with closing(Lease(controller.address, ASK_S, ranks=2)) as lease:
            given = json.loads(lease.response)["admission"]
            assert switch.jobs == [(254, given["generation"])]
            started = [psutil.Process(controller.child.pid), *controller.started]
            started[0].kill()
            psutil.wait_procs(started, ASK_S)
            assert switch.jobs == [(254, given["generation"])]
        with closing(Controlling(tmp_path, (tmp_path / "job.toml").read_text(), switch)) as following:
            assert switch.jobs == []
            following.wait_until_it_says("job 254: evicted, as it has spare ports")
            with closing(Lease(following.address, ASK_S, ranks=2)) as lease:
                assert json.loads(lease.response)["admission"]["generation"] != given["generation"]


@pytest.mark.parametrize("address", ["taken", "free"])
def test_a_controller_that_is_refused_leaves_groups_alone(tmp_path, address):
    with (
        served_to_four(tmp_path) as (switch, controller, _),
        closing(Lease(controller.address, ASK_S, ranks=2)) as lease,
    ):
        given = json.loads(lease.response)["admission"]
        listen = "{}:{}".format(*controller.address) if address == "taken" else "127.0.0.1:0"
        options = ["--udp", f"127.0.0.1:{switch.base}", "--listen", listen]
        text = (tmp_path / "job.toml").read_text().replace("id = 255", "id = 7")
        (other := tmp_path / "other.toml").write_text(text)
        said = CliRunner().invoke(app, ["job", "serve", str(other), *options])
        assert said.exit_code == 2
        reason = "another `peelsum job serve` has" if address == "free" else "Address already in use"
        assert reason in " ".join(said.output.split())
        assert switch.jobs == [(254, given["generation"])]


def test_groups_without_room_use_gloo_and_say_so(tmp_path):
    """Five ports are room for one group of two ranks."""
    told = in_mesh(tmp_path, 5)
    for (sums, numbers, _, _), expected in zip(told, SUMS, strict=True):
        assert sums == expected
        assert numbers == [254, 255]
    said = [warning for _, _, _, warnings in told for warning in warnings]
    assert len(said) == 6
    assert set(said) == {
        "group of 2 ranks: uses gloo, as a group of 2 ranks needs 3 spare ports of the switch, and 2 are "
        "free; add some to ports.spare of the job's description"
    }

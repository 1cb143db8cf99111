"""A switch or a server that is replaced while a rank enters, and parts that are stopped for a while."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import joining_ranks
import lost_ranks
import pytest
import stopped_ranks
from lost_ranks import check_sums
from patience import until
from served_job import served_to_four
from torch_ranks import run_ranks

pytestmark = pytest.mark.usefixtures("forked_children")

CONTINUE = {"on_lost": "continue"}


def replace(part, switch, controller, random):
    """Kill a part, and start it again a little later; the controller does that with a server."""
    if part in ("switch", "both"):
        os.kill(switch.pid, signal.SIGKILL)
    if part in ("server", "both"):
        for server in controller.started[:1]:
            server.kill()
    if part in ("switch", "both"):
        time.sleep(random.choice([0.0, 0.0, 0.3]))
        switch.stop()
        switch.start()


def enter_run(folder, job, stage, action, disturb, members, **options):
    """Run four ranks of which one is killed and another enters; return the results of those that are left.

    stage, action: of the rank that enters, see `joining_ranks.train`. disturb: is called at that stage.
    members: as many as there are at the end.
    """
    (killed := folder / "killed").mkdir()
    options = CONTINUE | options
    with ThreadPoolExecutor(2) as pool:
        arguments = 10, {2: (4, 0.005)}, killed, options, {}, members
        others = pool.submit(run_ranks, 4, lost_ranks.train, *arguments, environments=[job] * 4)
        until(lambda: lost_ranks.killed_at(killed))
        arguments = stage, action, folder, 10, {}, killed, options | {"enters": True}, {}, members
        late = pool.submit(run_ranks, 1, joining_ranks.train, *arguments, environments=[job])
        until(lambda: (folder / "reached").exists() or late.done())
        disturb()
        if action != "stop":
            (folder / "go on").touch()
        left = [result for result in others.result() if result is not None]
        (folder / "go on").touch()
        return left, late.result()[0]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("stage", joining_ranks.STAGES)
@pytest.mark.parametrize("part", ["switch", "server", "both"])
@pytest.mark.system
def test_a_rank_enters_while_a_part_is_replaced(tmp_path, part, stage, seed):
    random = Random(f"{part} {stage} {seed}")
    with served_to_four(tmp_path, spare=0, timeout_s=900.0) as (switch, controller, job):

        def disturb():
            time.sleep(random.choice([0.0, random.uniform(0, 0.01), random.uniform(0, 0.1)]))
            replace(part, switch, controller, random)

        action = random.choice(["", "wait"])
        left, late = enter_run(tmp_path, job, stage, action, disturb, 4)
    ranks = [*left, late]
    errors = {f"{name}: {message}" for _, (name, message, _) in ranks if name}
    sums = check_sums([(records, ("", "", 0.0)) for records, _ in ranks])
    if errors:  # a busy machine starts a switch too late
        assert part != "server"
        assert all("nothing answers P4Runtime" in error for error in errors), errors
    else:
        assert sums[max(sums)][-1][0] == (0, 1, 2, 3)


@pytest.mark.parametrize("stage", ["admitted", "state", "entered"])
@pytest.mark.system
def test_a_rank_that_is_stopped_while_it_enters_is_no_longer_a_member_and_says_so(tmp_path, stage):
    """The others miss it for `timeout_s`, longer than a busy machine keeps them from going on."""
    with served_to_four(tmp_path, spare=0, timeout_s=900.0) as (_, _, job):
        arguments = tmp_path, job, stage, "stop", lambda: None, 3
        left, (records, (name, message, _)) = enter_run(*arguments, timeout_s=20.0)
    assert (records, name) == ([], "TransportError")
    assert "this rank is no longer a member of its run" in message
    assert len(left) == 3
    sums = check_sums(left)
    assert sums[max(sums)][-1][0] == (0, 1, 3)


#: When a part is stopped: seconds after the begin of step 4, in a repair after another rank was killed, or
#: when rank 1 leaves.
MOMENTS = [0.0, 0.003, 0.01, "repair", "close"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("part", ["switch", "server", "controller"])
def test_a_run_goes_on_when_a_part_was_stopped_for_10_s(tmp_path, part, moment):
    (killed := tmp_path / "killed").mkdir()
    kills = {3: (4, 0.005)} if moment == "repair" else {}
    with served_to_four(tmp_path, spare=0, timeout_s=900.0) as (switch, controller, job):
        name = str(switch.pid) if part == "switch" else part
        arguments = controller.child.pid, name, moment, 10.0, 12, kills, killed, CONTINUE
        ranks = run_ranks(4, stopped_ranks.train_beside, *arguments, environments=[job] * 4)
    left = [result for result in ranks if result is not None]
    sums = check_sums(left)
    assert len(sums) == 12
    assert sums[11][-1][0] == tuple(rank for rank in range(4) if rank not in kills)

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
#: Errors that name the part that is missing: a run whose switch is away for longer than the controller waits.
NAMED = ("nothing answers P4Runtime", "the switch at ")


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


def check_entry(folder, part, stage, seed, *, dies=False):
    """Run four ranks of which one is killed and another enters, while a part is replaced; check all sums."""
    random = Random(f"{part} {stage} {seed}")
    (killed := folder / "killed").mkdir()
    victim, waits = random.randrange(4), random.random() < 0.5
    with (
        served_to_four(folder, spare=0, timeout_s=900.0) as (switch, controller, job),
        ThreadPoolExecutor(2) as pool,
    ):
        kills = {victim: (4, random.uniform(0, 0.01))}
        if dies:
            kills[(victim + 1) % 4] = (9, random.uniform(0, 0.01))
        others = pool.submit(
            run_ranks,
            4,
            lost_ranks.train,
            10,
            kills,
            killed,
            CONTINUE,
            {},
            3 if dies else 4,
            environments=[job] * 4,
            patience_s=150.0,
        )
        until(lambda: lost_ranks.killed_at(killed))
        arguments = stage, folder, waits, 10, {}, killed, CONTINUE | {"enters": True}, {}, 3 if dies else 4
        late = pool.submit(
            run_ranks, 1, joining_ranks.train, *arguments, environments=[job], patience_s=150.0
        )
        until(lambda: (folder / "reached").exists() or late.done())
        time.sleep(random.choice([0.0, random.uniform(0, 0.01), random.uniform(0, 0.1)]))
        replace(part, switch, controller, random)
        (folder / "goes on").touch()
        results = [*others.result(), *late.result()]
    return [result for result in results if result is not None]


@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS0", 0)), int(os.environ.get("SEEDS", 1))))
@pytest.mark.parametrize("stage", joining_ranks.STAGES)
@pytest.mark.parametrize("part", ["switch", "server", "both"])
def test_a_rank_enters_while_a_part_is_replaced(tmp_path, part, stage, seed):
    ranks = check_entry(tmp_path, part, stage, seed)
    errors = {(name, message) for _, (name, message, _) in ranks if name}
    print(part, stage, seed, errors)
    sums = check_sums([(records, ("", "", 0.0)) for records, _ in ranks])
    assert not errors
    assert sums[max(sums)][-1][0] == (0, 1, 2, 3)


#: When a part is stopped: seconds after the begin of step 4, in a repair after another rank was killed, or when
#: rank 1 leaves.
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

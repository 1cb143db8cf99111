"""Ranks that are killed at a random moment: the others fail at once, or go on with those that are left."""

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from copy import deepcopy
from pathlib import Path
from random import Random

import lost_ranks
import numpy as np
import psutil
import pytest
import stopped_ranks
import torch
from free_ports import KeptPort
from lost_ranks import check_sums
from patience import PATIENCE_S, until
from served_job import Controlling, Switch, described, served_over_racks, served_to_four
from torch_ranks import run_ranks

from peelsum.allreduce import LocalSummation
from peelsum.compress import DGC, CompressedSum, Memory, PowerSGD, Single, StarTopK, TopK
from peelsum.control import open_session
from peelsum.control.tables import read_jobs
from peelsum.summation import Part
from peelsum.torch.checkpoint import saved_files
from peelsum.transport import SwitchSummation, job_config

pytestmark = pytest.mark.usefixtures("forked_children")

EXAMPLE = Path(__file__).parents[2] / "examples/train_through_failures.py"
#: Far below the job's timeout, and far above what a busy machine takes.
SOON_S = 60.0


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A job of four ranks, whose sums wait longer for a rank than a test does."""
    with served_to_four(tmp_path_factory.mktemp("served"), spare=0, timeout_s=900.0) as served:
        yield served


@pytest.fixture
def job(served):
    """The environment of the ranks."""
    return served[2]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_the_others_fail_at_once_and_name_the_rank(job, tmp_path, seed):
    random = Random(seed)
    victim = random.randrange(4)
    kills = {victim: (random.randrange(2, 8), random.uniform(0, 0.01))}
    ranks = run_ranks(4, lost_ranks.train, 10_000, kills, tmp_path, {}, environments=[job] * 4)
    assert ranks[victim] is None
    killed_at = lost_ranks.killed_at(tmp_path)[victim]
    for records, (name, message, failed_at) in (rank for rank in ranks if rank is not None):
        assert name == "RankLostError"
        assert f"step {len(records)}, average of 'p" in message
        assert f": rank {victim} (process " in message
        assert " of 127.0.0.1) was lost; " in message
        assert 0 < failed_at - killed_at < SOON_S


@pytest.fixture(scope="module")
def job_of_eight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    with (
        closing(Switch(ports=9)) as switch,
        closing(Controlling(folder, described(switch, 8, timeout_s=900.0), switch)) as controller,
    ):
        yield {"PEELSUM_JOB": controller.job}


@pytest.fixture(scope="module")
def job_over_racks(tmp_path_factory):
    """The three switches of a job of two racks of two ranks, and the ranks' environment."""
    with served_over_racks(tmp_path_factory.mktemp("served")) as (switches, _, job):
        yield switches, job


def trained(job, world, *arguments):
    """Return what `lost_ranks.train` returns on those of so many ranks that are left."""
    ranks = run_ranks(world, lost_ranks.train, *arguments, environments=[job] * world)
    return [result for result in ranks if result is not None]


def check_compressed_sums(ranks, compressor):
    """Check that all ranks have the averages that undisturbed workers with the named members have.

    These are threads of this process, each with a memory of its own from its first step on. Return the
    members of each average by step, and the memories.
    """
    records = {}
    for rank_records, (_, message, _) in ranks:
        assert not message
        for step, averages, _, parameters in rank_records:
            assert records.setdefault(step, (averages, parameters)) == (averages, parameters)
    memories, before = {}, ()
    for step, (averages, _) in sorted(records.items()):
        for bucket, (members, bits) in enumerate(averages):
            for rank in set(members) - set(before):
                memories[rank] = Memory()
                if before:  # it enters, and gets what all have in common
                    memories[rank].kept = deepcopy(memories[min(before)].kept)
            before = members

            def sums(rank, summation, step=step, bucket=bucket):
                compressed = CompressedSum(summation, compressor, memories[rank])
                tensors = {f"p{bucket}": lost_ranks.gradient(rank, step, bucket)}
                return compressed.sum(tensors, step)[f"p{bucket}"].values

            with ThreadPoolExecutor(len(members)) as pool:
                results = list(pool.map(sums, members, LocalSummation.group(len(members))))
            assert bits == lost_ranks.digest(results[0])
    return {step: averages for step, (averages, _) in sorted(records.items())}, memories


def planned(random, world):
    """Return the kills of a run: of one rank, of two and of three, or of fewer if there are not so many."""
    ranks, kills, step = random.sample(range(world), world - 1), {}, 0
    for together in random.sample([1, 2, 3], 3):
        step += random.randrange(3, 7)
        span_s = random.choice([0.005, 0.02, 0.3])  # the longest: also while those that are left agree
        for _ in range(min(together, len(ranks))):
            kills[ranks.pop()] = (step, random.uniform(0, span_s))
    return kills, step + 6


def repair_times(kills, left, killed_at):
    """Return the seconds from the last kill to the end of each step in which ranks were killed, on all left.

    Others, which were to be killed in an earlier step, may hold up this one until they are killed, too.
    """
    times = []
    for step in sorted({step for step, _ in kills.values()}):
        dead_at = max(killed_at[rank] for rank in kills if kills[rank][0] == step)
        end = max(min(at for _, _, at, _ in records if at > dead_at) for records, _ in left)
        times.append(end - max(at for at in killed_at.values() if at < end))
    return times


def check_run(job, folder, seed, world, **options):
    """Run ranks of which some are killed; check all sums, and return the times of `repair_times`."""
    random = Random(seed)
    kills, steps = planned(random, world)
    arguments = steps, kills, folder, {"on_lost": "continue", **options}
    ranks = run_ranks(world, lost_ranks.train, *arguments, environments=[job] * world)
    assert {rank for rank, result in enumerate(ranks) if result is None} == set(kills)
    left = [result for result in ranks if result is not None]
    compressor = options.get("compressor")
    sums = check_compressed_sums(left, compressor)[0] if compressor else check_sums(left)
    assert len(sums) == steps
    assert sums[steps - 1][-1][0] == tuple(sorted(set(range(world)) - set(kills)))
    return repair_times(kills, left, lost_ranks.killed_at(folder))


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))]
)
def test_those_that_are_left_go_on(job, tmp_path, seed):
    times = check_run(job, tmp_path, seed, 4)
    print("ms from the last kill to the step's end:", *(round(1000 * time_s) for time_s in times))
    assert max(times) < SOON_S


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.system if seed < 4 else pytest.mark.slow) for seed in range(36)],
)
def test_those_that_are_left_of_eight_go_on(job_of_eight, tmp_path, seed):
    times = check_run(job_of_eight, tmp_path, seed, 8)
    print("ms from the last kill to the step's end:", *(round(1000 * time_s) for time_s in times))
    assert max(times) < SOON_S


COMPRESSORS = [TopK(0.02), DGC(0.02), StarTopK(0.02), PowerSGD(2), TopK(0.02, quantizer=Single())]


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_residuals_of_those_that_are_left_stay(job, tmp_path, compressor, seed):
    """Also those of ranks that get a result from another: later sums have the same bits as if undisturbed."""
    check_run(job, tmp_path, seed, 4, compressor=compressor)


def test_a_checkpoint_after_a_loss_has_the_residuals_of_those_that_are_left(job, tmp_path):
    (killed := tmp_path / "killed").mkdir()
    options = {"on_lost": "continue", "compressor": TopK(0.02)}
    left = trained(job, 4, 8, {1: (3, 0.005)}, killed, options, {}, 0, tmp_path)
    _, memories = check_compressed_sums(left, TopK(0.02))
    files = saved_files(tmp_path)
    assert sorted(files) == [(0, 3), (1, 3), (2, 3)]
    for (place, _), path in files.items():
        saved = torch.load(path)
        assert saved["steps"] == 8
        residuals = memories[(0, 2, 3)[place]].residuals
        assert saved["residuals"].keys() == residuals.keys() == {"p0", "p1", "p2"}
        for name, residual in residuals.items():
            for array, values in saved["residuals"][name].items():
                assert values is None or np.array_equal(values, getattr(residual, array))


class OtherJob:
    """Two workers of another job, which sum without a pause until this is closed; and how often."""

    def __init__(self, answer):
        self._config = job_config(answer["admission"])
        self._pool, self._ends, self.sums = ThreadPoolExecutor(2), threading.Event(), 0
        self._done = [self._pool.submit(self._run, *item) for item in enumerate(answer["switch"])]

    def _run(self, worker, address):
        host, _, port = address.rpartition(":")
        with SwitchSummation(self._config, worker, (host, int(port))) as summation:
            going = 1
            while going:
                going = 0 if worker == 0 and self._ends.is_set() else 1
                words = np.arange(5000, dtype=np.uint32) * np.uint32(1 + worker)
                parts = [Part(np.array([going], np.uint32), "add"), Part(words, "add")]
                (both,), total = summation.sum_words(parts)
                assert np.array_equal(total, np.arange(5000) * 3)
                going, self.sums = both == 2, self.sums + 1

    def close(self):
        self._ends.set()
        for done in self._done:
            done.result()


@pytest.mark.system
def test_another_job_on_the_switch_is_not_touched(tmp_path):
    """It sums all the time, and the switch has the same rows of it before and after three changes."""
    folders = [tmp_path / name for name in ("other", "killed", "job")]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack:
        switch = stack.enter_context(closing(Switch(ports=8)))
        job = described(switch, 4, job_id=255, timeout_s=900.0)
        served = stack.enter_context(closing(Controlling(folders[2], job, switch)))
        other = described(switch, job_id=7, first=6, timeout_s=900.0)
        controller = stack.enter_context(closing(Controlling(folders[0], other, switch)))

        def rows():
            with open_session(switch.p4runtime) as session:
                return next(job for job in read_jobs(session) if job.job_id == 7)

        with controller.asked() as answer, closing(OtherJob(answer)) as running:
            until(lambda: running.sums)
            before, sums = rows(), running.sums
            check_run({"PEELSUM_JOB": served.job}, folders[1], 1, 4)
            assert rows() == before
            until(lambda: running.sums > sums + 20)


@pytest.mark.system
def test_a_rank_that_is_stopped_for_a_while_goes_on(job, tmp_path):
    sums = check_sums(trained(job, 4, 12, {}, tmp_path, {"on_lost": "continue"}, {1: (4, 3.0)}))
    assert {members for averages in sums.values() for members, _ in averages} == {(0, 1, 2, 3)}


@pytest.mark.system
def test_a_rank_that_is_stopped_for_too_long_is_no_longer_a_member_and_says_so(job, tmp_path):
    """The others miss it for `timeout_s`, longer than a busy machine keeps them from going on."""
    options = {"on_lost": "continue", "timeout_s": 20.0}
    ranks = trained(job, 4, 12, {}, tmp_path, options, {1: (4, 60.0)})
    records, (name, message, _) = ranks.pop(1)
    assert len(records) == 4
    assert name == "TransportError"
    assert "this rank is no longer a member of its run: a sum of rank " in message
    sums = check_sums(ranks)
    assert [averages[-1][0] for averages in sums.values()] == [(0, 1, 2, 3)] * 4 + [(0, 2, 3)] * 8


#: When a rank is stopped; in a repair, after another one was killed.
MOMENTS = [0.0, 0.003, 0.01, "repair", "close"]


def run_with_a_stopped_rank(job, folder, moment, until, timeout_s):
    """Run four ranks for 12 steps, of which rank 1 is stopped; return records and error by rank."""
    kills = {3: (4, 0.005)} if moment == "repair" else {}
    options = {"on_lost": "continue", "timeout_s": timeout_s}
    (killed := folder / "killed").mkdir()
    arguments = 1, moment, until, 12, kills, killed, options
    ranks = run_ranks(4, stopped_ranks.train, *arguments, environments=[job] * 4)
    return {rank: result for rank, result in enumerate(ranks) if result is not None}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_that_is_stopped_for_10_s_goes_on(job, tmp_path, moment):
    ranks = run_with_a_stopped_rank(job, tmp_path, moment, 10.0, 900.0)
    sums = check_sums(ranks.values())
    assert len(sums) == 12
    assert sums[11][-1][0] == tuple(ranks)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_that_is_stopped_until_the_others_have_ended_says_that_it_is_no_member(job, tmp_path, moment):
    """The others go on without it. If it had completed all its sums, it ends in order, with the same ones."""
    ranks = run_with_a_stopped_rank(job, tmp_path, moment, tmp_path / "ended", 20.0)
    records, (name, message, _) = ranks[1]
    if moment == "close":
        assert message == ""
    else:
        assert name == "TransportError"
        assert "is no longer a member" in message
        assert len(records) < 12
    sums = check_sums((records, ("", "", 0.0)) if rank == 1 else result for rank, result in ranks.items())
    assert len(sums) == 12
    assert sums[11][-1][0] == (tuple(ranks) if moment == "close" else tuple(sorted(ranks.keys() - {1})))


@pytest.mark.system
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_ranks_of_racks_that_are_left_go_on(job_over_racks, tmp_path, seed):
    times = check_run(job_over_racks[1], tmp_path, seed, 4)
    print("ms from the last kill to the step's end:", *(round(1000 * time_s) for time_s in times))


@pytest.mark.system
def test_a_rack_of_which_all_ranks_were_lost_comes_back(job_over_racks, tmp_path):
    """Until then the job is not on its switch."""
    switches, job = job_over_racks
    kills, options = {2: (3, 0.0), 3: (3, 0.01)}, {"on_lost": "continue"}
    with ThreadPoolExecutor(3) as pool:
        others = pool.submit(trained, job, 4, 6, kills, tmp_path, options, {}, 4)
        until(lambda: len(lost_ranks.killed_at(tmp_path)) == 2)
        until(lambda: not switches[2].jobs)
        assert len(switches[1].jobs) == 1
        arguments = job, 1, 6, {}, tmp_path, options | {"enters": True}, {}, 4
        late = [pool.submit(trained, *arguments) for _ in range(2)]
        ranks = [result for run in (others, *late) for result in run.result()]
    sums = check_sums(ranks)
    assert len(ranks) == 4
    assert (0, 1) in {members for averages in sums.values() for members, _ in averages}
    assert sums[max(sums)][-1][0] == (0, 1, 2, 3)


@pytest.mark.parametrize("compressor", [None, PowerSGD(2), TopK(0.02)], ids=repr)
def test_ranks_enter_in_the_seats_of_those_that_were_lost(job, tmp_path, compressor):
    """They get the parameters, and from then on all have the same averages."""
    random, joiners = Random(2), 2
    victims = random.sample(range(4), joiners)
    kills = {victim: (4, random.uniform(0, 0.02)) for victim in victims}
    options = {"on_lost": "continue", "compressor": compressor}

    def entered(_):
        until(lambda: len(lost_ranks.killed_at(tmp_path)) == joiners)
        return trained(job, 1, 10, {}, tmp_path, options | {"enters": True}, {}, 4)[0]

    with ThreadPoolExecutor(1 + joiners) as pool:
        others = pool.submit(trained, job, 4, 10, kills, tmp_path, options, {}, 4)
        late = list(pool.map(entered, range(joiners)))
    assert len(others.result()) == 4 - joiners
    everyone = [*others.result(), *late]
    sums = check_compressed_sums(everyone, compressor)[0] if compressor else check_sums(everyone)
    assert all(records[0][0] > 4 for records, _ in late)
    assert sums[max(sums)][-1][0] == (0, 1, 2, 3)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_is_lost_in_the_last_step(job, tmp_path, seed):
    """Those that are left end in order, with equal results, also if some have completed the last sum."""
    random = Random(seed)
    victim, steps = random.randrange(4), 5
    kills = {victim: (steps - 1, random.uniform(0, 0.01))}
    left = trained(job, 4, steps, kills, tmp_path, {"on_lost": "continue"})
    assert len(left) == 3
    assert len(check_sums(left)) == steps


#: What a rank that enters has other than those that sum, and what its error says.
MISTAKES = [
    ({"forms": "dense"}, "option 'forms' is 'dense' here and 'auto' on the ranks that sum"),
    ({"shared": "none"}, "object 'weights' is missing here and given on the ranks that sum"),
    ({"names": "other"}, "parameter 'p0' is torch.float32[7] here and torch.float32["),
]


def test_ranks_that_enter_with_other_scripts_fail_alone(job, tmp_path):
    kills, options = {0: (3, 0.0)}, {"on_lost": "continue"}

    def entered(extra):
        return trained(job, 1, 8, {}, tmp_path, options | {"enters": True} | extra, {}, 4)[0]

    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(trained, job, 4, 8, kills, tmp_path, options, {}, 4)
        until(lambda: lost_ranks.killed_at(tmp_path))
        for other, text in MISTAKES:
            _, (name, message, _) = entered(other)
            assert (name, text in message) == ("HookConfigError", True), message
        late = entered({})
    assert len(others.result()) == 3
    sums = check_sums([*others.result(), late])
    assert sums[max(sums)][-1][0] == (0, 1, 2, 3)


def test_a_rank_that_enters_is_lost_while_it_gets_the_state(job, tmp_path):
    """And another one enters after it."""
    kills, options = {0: (3, 0.0)}, {"on_lost": "continue"}
    late = {"enters": True, "shared": "killed"}
    with ThreadPoolExecutor(2) as pool:
        others = pool.submit(trained, job, 4, 8, kills, tmp_path, options, {}, 4)
        until(lambda: lost_ranks.killed_at(tmp_path))
        assert trained(job, 1, 8, {}, tmp_path, options | late, {}, 4) == []
        entered = trained(job, 1, 8, {}, tmp_path, options | {"enters": True}, {}, 4)
    assert len(entered) == 1
    assert check_sums([*others.result(), *entered])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.system
def test_the_server_is_lost_with_a_rank(served, job, tmp_path, number):
    _, controller, _ = served
    with ThreadPoolExecutor(1) as pool:
        left = pool.submit(trained, job, 4, 20, {1: (5, 0.0)}, tmp_path, {"on_lost": "continue"})
        until(lambda: lost_ranks.killed_at(tmp_path))
        controller.started[0].send_signal(number)
    assert len(left.result()) == 3
    assert len(check_sums(left.result())) == 20


@pytest.mark.system
@pytest.mark.parametrize("comes_back", [True, False])
def test_the_switch_is_lost_with_a_rank(tmp_path, comes_back):
    (killed := tmp_path / "killed").mkdir()
    with (
        served_to_four(tmp_path, spare=0, timeout_s=900.0) as (switch, _, job),
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(trained, job, 4, 20, {1: (5, 0.0)}, killed, {"on_lost": "continue"})
        until(lambda: lost_ranks.killed_at(killed))
        switch.stop()
        if comes_back:
            switch.start()
        left = running.result()
    assert len(left) == 3
    errors = {name for _, (name, _, _) in left}
    if errors != {""}:  # a busy machine starts a switch too late
        assert errors == {"TransportError"}
        assert all("nothing answers P4Runtime" in message for _, (_, message, _) in left)
        return
    assert comes_back
    assert len(check_sums(left)) == 20


@pytest.mark.system
def test_the_controller_is_lost_with_a_rank(tmp_path):
    """The run ends, at once and with a clear error, and so does its server; another run can start."""
    (killed := tmp_path / "killed").mkdir()
    with closing(Switch(ports=5)) as switch, ThreadPoolExecutor(1) as pool:
        job = described(switch, 4, timeout_s=900.0)
        with closing(Controlling(tmp_path, job, switch)) as controller:
            arguments = 10_000, {1: (5, 0.0)}, killed, {"on_lost": "continue"}
            left = pool.submit(trained, {"PEELSUM_JOB": controller.job}, 4, *arguments)
            until(lambda: lost_ranks.killed_at(killed))
            server = controller.started[0]
            os.kill(controller.child.pid, signal.SIGKILL)
            assert len(left.result()) == 3
            for _, (name, message, failed_at) in left.result():
                assert name == "TransportError"
                assert failed_at - lost_ranks.killed_at(killed)[1] < SOON_S
                assert "so the run has ended; see whether `peelsum job serve` is running" in message
            until(lambda: not server.is_running())
        with closing(Controlling(tmp_path, job, switch)) as controller:
            arguments = 3, {}, killed, {"on_lost": "continue"}
            assert len(check_sums(trained({"PEELSUM_JOB": controller.job}, 4, *arguments))) == 3


def test_nothing_is_left_behind(served):
    """Of all runs so far: one job with one server, and no connection of a rank."""
    switch, controller, _ = served
    process = psutil.Process(controller.child.pid)
    ranks = f":{controller.address[1]}"

    def connections():
        found = process.net_connections("tcp")
        return [one for one in found if one.status == "ESTABLISHED" and f":{one.laddr.port}" == ranks]

    until(lambda: not connections())
    assert len(switch.jobs) == 1
    # A server ends by itself a while after its run, and its standby process with it.
    until(lambda: len(controller.started) <= 1)


@pytest.mark.system
def test_the_example_goes_on_without_rank_0_and_lets_another_enter(job):
    command = [sys.executable, str(EXAMPLE), "--steps", "300"]
    environment = {**os.environ, **job, "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": "4"}
    with KeptPort() as port, ExitStack() as stack:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.number)}

        def started(*more, **variables):
            own = {**environment, **variables}
            process = subprocess.Popen([*command, *more], env=own, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        ranks = [started(RANK=str(rank)) for rank in range(4)]
        for rank in ranks:  # a loss before all have connected ends the start
            assert "begins at step 0" in rank.stdout.readline()
        ranks[0].kill()
        late = started("--enter")
        assert re.match(r"rank 0, process \d+: begins at step [1-9]", late.stdout.readline())
        said = [process.communicate(timeout=PATIENCE_S)[0] for process in (*ranks[1:], late)]
    sums = {re.search(r"ends with parameters of sum (\S+)", text)[1] for text in said}
    assert len(sums) == 1

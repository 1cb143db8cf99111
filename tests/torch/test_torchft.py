"""torchft's process group over a switch: gloo's results, a job for each quorum, errors instead of waits."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("torchft", reason="torchft is not installed")

import torch
import torch.distributed as dist
import torchft_replicas as replicas
from patience import PATIENCE_S, until, with_longer_timeouts
from served_job import Controlling, Switch, described
from torch._C._distributed_c10d import AllgatherOptions
from torchft.process_group import ProcessGroupGloo

from peelsum.torch import HookConfigError, HookError
from peelsum.torch.torchft import ProcessGroupPeelsum
from peelsum.transport import TransportError

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("forked_children")]
RANKS = 3


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A switch, and the controller of a job of three workers there, with spare ports for two groups."""
    with closing(Switch(ports=4 + 12)) as switch:
        job = described(switch, RANKS, spare=12, timeout_s=PATIENCE_S)
        with closing(Controlling(tmp_path_factory.mktemp("served"), job, switch)) as controller:
            yield switch, controller


class Quorums:
    """Ranks as threads of this process, which `configure` puts into a quorum as a manager does."""

    def __init__(self, groups):
        self.groups, self._pool = groups, ThreadPoolExecutor(len(groups))
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._number = 0

    def configure(self, ranks, of=None):
        """Put the first `ranks` groups into a new quorum, of as many."""
        self._number += 1
        where = f"127.0.0.1:{self._store.port}/torchft/{self._number}/0"
        self.on_all(ranks, lambda group, rank: group.configure(where, str(rank), rank, of or ranks))

    def on_all(self, ranks, work):
        """What `work(group, rank)` returns on each of the first ranks."""
        return list(self._pool.map(work, self.groups[:ranks], range(ranks)))

    def close(self):
        self.on_all(len(self.groups), lambda group, _: group.shutdown())
        self._pool.shutdown()


@pytest.fixture
def quorums(served, monkeypatch):
    """Three ranks over the switch."""
    monkeypatch.setenv("PEELSUM_JOB", served[1].job)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    groups = [ProcessGroupPeelsum(timedelta(seconds=PATIENCE_S)) for _ in range(RANKS)]
    with closing(Quorums(groups)) as made:
        yield made


def collectives(group, rank):
    """What each call writes, of numbers whose float sums are exact, and whether it succeeded."""
    ranks, results = group.size(), {}

    def done(name, work, *tensors):
        assert work.wait(), name
        if name != "send" or isinstance(group, ProcessGroupPeelsum):  # gloo's have no future
            work.get_future().wait()
        results[name] = [tensor.tolist() for tensor in tensors]

    for dtype in (torch.float32, torch.int64):
        mine = torch.arange(12, dtype=dtype) + 10 * rank
        for op in ("SUM", "MAX"):
            options = dist.AllreduceOptions()
            options.reduceOp = getattr(dist.ReduceOp, op)
            tensor = mine.clone()
            done(f"allreduce {op} {dtype}", group.allreduce([tensor], options), tensor)
        tensor = mine.clone()
        done(f"operation {dtype}", group.allreduce([tensor], dist.ReduceOp.SUM), tensor)
        tensors = [mine.clone(), mine + 1]
        work = group.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions())
        done(f"coalesced {dtype}", work, *tensors)
        tensors = [torch.zeros_like(mine) for _ in range(ranks)]
        done(f"allgather {dtype}", group.allgather([tensors], [mine], AllgatherOptions()), *tensors)
        tensors = [torch.zeros(12 * ranks, dtype=dtype) for _ in range(2)]
        work = group.allgather_into_tensor_coalesced(tensors, [mine, mine + 1], AllgatherOptions())
        done(f"gathered {dtype}", work, *tensors)
        output, parts = torch.zeros_like(mine), [12 // ranks] * ranks
        work = group.alltoall_base(output, mine, parts, parts, dist.AllToAllOptions())
        done(f"alltoall {dtype}", work, output)
        tensor = mine.clone()
        done(f"broadcast {dtype}", group.broadcast_one(tensor, ranks - 1), tensor)
    done("barrier", group.barrier(dist.BarrierOptions()))
    tensor = torch.arange(3.0)
    if ranks > 1 and rank < 2:
        work = group.send([tensor], 1, 0) if rank == 0 else group.recv([tensor.zero_()], 0, 0)
        done("send", work, tensor)
    return results


def test_calls_have_the_results_of_torchfts_gloo_group(quorums, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    gloo = Quorums([ProcessGroupGloo(timedelta(seconds=PATIENCE_S)) for _ in range(RANKS)])
    for ranks in (RANKS, 1):
        for made in (quorums, gloo):
            made.configure(ranks)
        assert quorums.on_all(ranks, collectives) == gloo.on_all(ranks, collectives)
    assert [group.errored() for group in quorums.groups] == [None] * RANKS
    assert {group.getBackendName() for group in quorums.groups} == {"torchft-peelsum"}


def scattered(group, rank):
    """The rank's pieces of sums, of which torchft's gloo group has none."""
    ranks, results = group.size(), []
    outputs = [torch.zeros(2) for _ in range(2)]
    given = [torch.arange(2.0 * ranks) + rank, torch.arange(2.0 * ranks) * rank]
    pieces = [list(given[0].chunk(ranks))]
    assert group.reduce_scatter([outputs[0]], pieces, dist.ReduceScatterOptions()).wait()
    results.append(outputs[0].tolist())
    assert group.reduce_scatter_tensor_coalesced(outputs, given, dist.ReduceScatterOptions()).wait()
    return [*results, *(output.tolist() for output in outputs)]


def held(controller):
    """Descriptors and threads of this process, and children of the controller."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("peelsum")]
    return len(list(Path("/proc/self/fd").iterdir())), len(threads), len(controller.started)


def settled(controller):
    """Return `held` once it is the same for 3 s: what a quorum had ends in the background."""
    count, since = held(controller), time.monotonic()
    while time.monotonic() - since < 3.0:
        time.sleep(0.1)
        if (now := held(controller)) != count:
            count, since = now, time.monotonic()
    return count


@pytest.mark.parametrize("times", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_what_a_quorum_had_is_free_after_the_next_ones(served, quorums, times):
    switch, controller = served
    before = {}
    for ranks in (3, 2) * times:
        quorums.configure(ranks)
        total = sum(range(ranks))
        for rank, pieces in enumerate(quorums.on_all(ranks, scattered)):
            part = np.arange(2.0) + 2 * rank
            assert pieces == [(ranks * part + total).tolist()] * 2 + [(total * part).tolist()]
        until(lambda: len(switch.jobs) == 1, "the job before was not evicted")
        if ranks not in before:
            before[ranks] = settled(controller)
        expected = before[ranks]
        until(lambda expected=expected: held(controller) == expected, f"not {expected}, as before")


# torchft's own tests


@pytest.fixture(scope="module")
def own_tests(served):
    """torchft's tests of several process groups, with ours. Errors may have our words."""
    pytest.importorskip("parameterized", reason="torchft's tests need parameterized, which is not installed")
    from torchft.process_group_test import MultiPgBaseTest

    class OwnTests(MultiPgBaseTest):
        WORLD_SIZE = RANKS

        @classmethod
        def _create_pg(cls, backend):
            return ProcessGroupPeelsum(timedelta(seconds=PATIENCE_S))

        def assertRaisesRegex(self, expected, pattern):  # noqa: N802 - unittest's name
            return pytest.raises((HookError, TransportError, RuntimeError))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEELSUM_JOB", served[1].job)
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        OwnTests.setUpClass()
        yield OwnTests()
        OwnTests.tearDownClass()


COLLECTIVES = [
    *("allgather", "allgather_into_tensor_coalesced", "allreduce", "allreduce_coalesced", "alltoall_base"),
    *("barrier", "broadcast", "broadcast_one", "reduce_scatter", "reduce_scatter_tensor_coalesced"),
    "send/recv",
]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_torchfts_own_tests_of_a_collective_pass(own_tests, collective):
    own_tests._run_parallel(collective)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_torchfts_own_tests_of_a_collective_that_loses_a_rank_pass(own_tests, collective):
    own_tests._run_with_resiliency(collective)


def test_all_of_torchfts_collectives_are_tested(own_tests):
    from torchft.process_group_test import _ALL_COLLECTIVES

    assert sorted(_ALL_COLLECTIVES) == sorted(COLLECTIVES)


# errors


def begun(group):
    """A sum at one rank."""
    return group.allreduce([torch.ones(5000)], dist.ReduceOp.SUM)


def error_of(group, work):
    """The error of a call that fails, when it is waited for; its future and the group have it, too."""
    for wait in (work.wait, work.get_future().wait):
        with pytest.raises((HookError, TransportError)) as raised:
            wait()
    assert group.errored() is not None
    return str(raised.value)


def test_a_rank_that_does_not_sum_is_an_error_within_the_timeout(quorums):
    def in_time(timeout_s):
        for group in quorums.groups:
            group.set_timeout(timedelta(seconds=timeout_s))
        try:
            quorums.configure(RANKS)
        except HookError as error:
            raise AssertionError from error  # the machine is too busy

        def one(group, _):
            return group.allreduce([torch.ones(1)], dist.ReduceOp.SUM).wait()

        assert quorums.on_all(RANKS, one)
        for error in quorums.on_all(2, lambda group, _: error_of(group, begun(group))):
            assert "still waiting for worker 2" in error

    with_longer_timeouts(in_time)
    quorums.configure(2)
    assert [group.errored() for group in quorums.groups[:2]] == [None, None]
    assert quorums.on_all(2, collectives)


def test_abort_ends_a_sum_that_waits(quorums):
    quorums.configure(RANKS)
    group = quorums.groups[0]
    work = begun(group)
    waiting = ThreadPoolExecutor(1).submit(work.wait)
    group.abort()
    with pytest.raises(TransportError, match="sum: the process group was aborted on this rank; make another"):
        waiting.result(PATIENCE_S / 4)
    assert str(group.errored()) == "group: was aborted on this rank; configure it again"
    quorums.configure(2)
    assert quorums.on_all(2, collectives)


def test_a_rank_that_does_not_come_is_an_error_within_the_timeout(quorums):
    for group in quorums.groups:
        group.set_timeout(timedelta(seconds=0.5))
    with pytest.raises((HookError, RuntimeError)):
        quorums.configure(2, of=RANKS)
    for group in quorums.groups:
        group.set_timeout(timedelta(seconds=PATIENCE_S))
    quorums.configure(2)
    assert quorums.on_all(2, collectives)


def test_without_a_controller_or_ports_it_says_so(quorums, monkeypatch):
    monkeypatch.delenv("PEELSUM_JOB")
    with pytest.raises(HookConfigError, match="PEELSUM_JOB names no `peelsum job serve`"):
        quorums.configure(2)


# training

STEPS, KILLED_AT, JOINED_AT = 16, 4, 9
#: A replica whose heartbeat does not come for 15 s is dead; with the others alive, a quorum waits for all.
LIGHTHOUSE = {"min_replicas": 2, "join_timeout_ms": 60_000, "heartbeat_timeout_ms": 15_000}


def test_training_goes_on_when_a_replica_is_killed_and_another_joins(served):
    """All sums are exact, and the parameters' bits are the same on all replicas at the end."""
    with ExitStack() as stack:

        def start(*arguments):
            return stack.enter_context(closing(replicas.Process(*arguments)))

        port = start(replicas.lighthouse, LIGHTHOUSE).receive()
        places = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "PEELSUM_JOB": served[1].job}

        def replica(number, wait_at):
            return start(replicas.trained, places | {"REPLICA": str(number)}, PATIENCE_S / 4, STEPS, wait_at)

        *survivors, killed = [replica(number, JOINED_AT) for number in range(RANKS)]
        while killed.receive() < KILLED_AT:
            pass
        killed.close()
        for survivor in survivors:
            while survivor.receive() < JOINED_AT:
                pass
        joiner = replica(RANKS - 1, STEPS)
        assert joiner.receive() == 0
        for survivor in survivors:
            survivor.send("go on")
        ended = [until_trained(process) for process in (*survivors, joiner)]
    for parameters, sizes, wrong_sums in ended:
        np.testing.assert_array_equal(parameters, ended[0][0])
        assert (sizes[-1], wrong_sums) == (3, 0)
    assert [set(sizes) for _, sizes, _ in ended[:2]] == [{2, 3}] * 2


def until_trained(process):
    """The parameters and the sizes of the sums, which a replica sends after its steps."""
    while isinstance(message := process.receive(), int):
        pass
    return message

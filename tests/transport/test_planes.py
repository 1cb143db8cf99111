"""A worker in several planes: each part's shares, what is in step, and what one plane's failure does."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace

import numpy as np
import pytest
from patience import PATIENCE_S, with_longer_timeouts
from udp_switch import PORT, drawn, served

from peelsum.summation import Part
from peelsum.transport import (
    AggregationService,
    JobConfig,
    SwitchSummation,
    Timers,
    TransportConfigError,
    TransportError,
)
from peelsum.transport.errors import StalledError, SwitchUnreachableError
from peelsum.transport.stats import WorkerStats, added
from peelsum.wire import Flag, packet_fields
from peelsum.wire.datagrams import BatchSocket

LANES, WORKERS = 8, 3
#: Words of the smallest share.
SHARE = 64 * LANES
#: Jobs of the planes: what one plane counts, the others do not.
CONFIGS = [
    JobConfig(job_id=7, generation=4, workers=WORKERS, lanes=LANES, window=64, first_chunk=0xFFFFFFE0),
    JobConfig(job_id=2, generation=9, workers=WORKERS, lanes=LANES, window=32, first_chunk=5),
    JobConfig(job_id=2, generation=4, workers=WORKERS, lanes=LANES, window=128),
]


class Planes:
    """Switches of the specification with their servers, and the workers in all of them."""

    def __init__(self, served, configs):
        self.switches = [switch for switch, *_ in served]
        self.configs, self._served = configs, served

    def stop(self, plane):
        """End a plane's server, unless it has ended; return its statistics."""
        _, service, _, serving = self._served[plane]
        service.stop()
        return serving.result(PATIENCE_S)

    def places(self, worker):
        """The job and the worker's port in every plane."""
        at = [switch.address(worker) for switch in self.switches]
        return list(zip(self.configs, at, strict=True))

    def on_all(self, work, timeout_s=PATIENCE_S):
        """What `work` returned or raised, by worker."""

        def run(worker):
            (job, address), *more = self.places(worker)
            try:
                planes = {"timeout_s": timeout_s, "more_planes": more}
                with SwitchSummation(job, worker, address, **planes) as summation:
                    return work(summation)
            except Exception as error:
                return error

        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(run, range(WORKERS)))


@contextmanager
def planes(count, loss=0.0, timers=None):
    timers = timers or Timers(linger=PATIENCE_S)
    configs = [replace(one, timers=timers) for one in CONFIGS[:count]]
    with ExitStack() as stack:
        serving = [served(config, loss=loss, seed=plane) for plane, config in enumerate(configs)]
        played = list(map(stack.enter_context, serving))
        yield Planes(played, configs)


def independent(op, number, length):
    """The sum by Python's integers."""
    rows = [drawn(worker, number, length).tolist() for worker in range(WORKERS)]
    if op == "add":
        return [sum(column) % 2**32 for column in zip(*rows, strict=True)]
    return [a | b | c for a, b, c in zip(*rows, strict=True)]


#: Around chunks, and around where a part gets one more share.
LENGTHS = [0, 1, LANES - 1, LANES, LANES + 1]
LENGTHS += [2 * SHARE + more for more in (-LANES, 1 - LANES, 0, 1)]
LENGTHS += [3 * SHARE - LANES, 3 * SHARE, 3 * SHARE + LANES + 1, 7 * SHARE + 3]


@pytest.mark.covering(1)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("loss", [0.0, 0.03])
def test_sums_are_those_of_pythons_integers(count, loss):
    ops = ("add", "or")
    plan = [(ops[number % 2], number, length) for number, length in enumerate(LENGTHS + LENGTHS[1::3])]

    def work(summation):
        assert (summation.planes, summation.lanes, summation.workers) == (count, LANES, WORKERS)
        together, alone = plan[: len(LENGTHS)], plan[len(LENGTHS) :]
        parts = [Part(drawn(summation.worker_id, n, length), op) for op, n, length in together]
        results = summation.sum_words(parts)
        for op, n, length in alone:
            results += summation.sum_words([Part(drawn(summation.worker_id, n, length), op)])
        return [one.tolist() for one in results]

    with planes(count, loss) as made:
        got = made.on_all(work)
    assert got == [[independent(*one) for one in plan]] * WORKERS


def test_a_part_is_checked_once_all_its_shares_are_there_and_before_later_parts():
    """Plane 1 loses every packet of the later part until all workers have checked the first."""
    length = 4 * SHARE

    def work(summation):
        seen = []

        def check(words):
            seen.append(words.tolist())
            checked.wait(PATIENCE_S)

        first, second = (drawn(summation.worker_id, number, length) for number in (0, 1))
        results = summation.sum_words([Part(first, "add", check), Part(second, "or")])
        assert seen == [results[0].tolist()]
        return [one.tolist() for one in results]

    with planes(2) as made:
        spec, all_checked = made.switches[1].spec, threading.Event()
        checked = threading.Barrier(WORKERS, action=all_checked.set)
        process = spec.process

        def lossy(port, payload, now):
            packet = packet_fields(np.frombuffer(payload, np.uint8)[None, :], LANES)
            later = bool(packet["flags"][0] & Flag.OR)
            return [] if later and not all_checked.is_set() else process(port, payload, now)

        spec.process = lossy
        assert made.on_all(work) == [[independent("add", 0, length), independent("or", 1, length)]] * WORKERS


def test_what_a_check_raises_ends_the_sum_in_all_planes():
    """Later parts differ in length, so that no plane would ever complete them."""

    def work(summation):
        def refuse(words):
            raise ValueError(f"{words[0]}")

        later = np.zeros((summation.worker_id + 2) * SHARE, np.uint32)
        agreement = np.full(1, 1 << summation.worker_id, np.uint32)
        with pytest.raises(ValueError, match=r"^7$"):
            summation.sum_words([Part(agreement, "or", refuse), Part(later, "add")])
        with pytest.raises(TransportError, match="out of step"):
            summation.sum_words([])
        return "done"

    with planes(2) as made:
        assert made.on_all(work) == ["done"] * WORKERS


@pytest.mark.parametrize(("dead", "length"), [pytest.param(0, LANES, marks=pytest.mark.slow), (1, 4 * SHARE)])
def test_a_plane_whose_switch_falls_silent_is_named_by_every_worker(dead, length):
    def named(timeout_s):
        met = threading.Barrier(WORKERS)

        def work(summation):
            summation.sum_words([Part(drawn(0, 0, length), "add")])
            if met.wait(PATIENCE_S) == 0:
                made.switches[dead].spec.process = lambda *_: []
            met.wait(PATIENCE_S)
            for _ in range(2):  # one of two single chunks goes to the dead plane
                summation.sum_words([Part(drawn(0, 0, length), "add")])
            return "summed"

        with planes(2, timers=Timers(resend_most=0.05, linger=0.1)) as made:
            errors = made.on_all(work, timeout_s)
        assert {type(error) for error in errors} == {StalledError}
        for error in errors:
            assert str(error).startswith(f"plane {dead}: job {CONFIGS[dead].job_id}: no progress on chunk")

    with_longer_timeouts(named)


def test_a_worker_that_leaves_is_noticed_in_the_plane_of_the_next_part():
    def work(summation):
        for _ in range(1 + (summation.worker_id == 1)):
            summation.sum_words([Part(drawn(0, 0, LANES), "add")])
        return "left"

    with planes(2, timers=Timers(linger=1.0)) as made:
        outcomes = made.on_all(work)
    assert [outcomes[0], outcomes[2]] == ["left", "left"]
    assert isinstance(outcomes[1], TransportError)
    assert str(outcomes[1]).startswith("plane 1: job 2: a worker has left while this one still sums")


def test_a_server_that_lost_its_state_is_helped_by_workers_that_sum_in_another_plane():
    """Worker 0 misses results of plane 1 until the plane's server starts anew; others sum in plane 0 then."""

    def work(summation):
        number = summation.worker_id
        summation.sum_words([])
        joined.wait(PATIENCE_S)
        results = []
        for part in range(3):  # in plane 0, 1, 0
            results += summation.sum_words([Part(drawn(number, part, LANES), "add")])
            if part == 1 and number:
                ahead.wait(PATIENCE_S)
        return [one.tolist() for one in results]

    timers = Timers(linger=PATIENCE_S, need=0.005, need_most=0.02)
    with planes(2, timers=timers) as made, ExitStack() as stack:
        spec, restarted = made.switches[1].spec, threading.Event()
        process, port = spec.process, PORT + 1

        def lossy(ingress, payload, now):
            out = process(ingress, payload, now)
            return out if restarted.is_set() else [one for one in out if one[0] != port]

        def restart():
            made.stop(1)
            again = stack.enter_context(AggregationService(made.configs[1], made.switches[1].address()))
            serving = threading.Thread(target=again.run)
            serving.start()
            stack.callback(serving.join)
            stack.callback(again.stop)
            restarted.set()

        joined = threading.Barrier(WORKERS, action=lambda: setattr(spec, "process", lossy))
        ahead = threading.Barrier(WORKERS - 1, action=restart)
        assert made.on_all(work) == [[independent("add", part, LANES) for part in range(3)]] * WORKERS


def test_a_plane_without_a_switch_is_named():
    with planes(1) as made, BatchSocket.bind(("127.0.0.1", 0), 48) as silent:
        ((job, address),) = made.places(0)
        with pytest.raises(
            SwitchUnreachableError, match=rf"^plane 1: .*:{silent.address[1]}: no answer in 0\.3 s; check"
        ):
            SwitchSummation(job, 0, address, hello_s=0.3, more_planes=[(CONFIGS[1], silent.address)])


@pytest.mark.parametrize("other", [{"workers": 2}, {"lanes": 16}, {"workers": 3, "racks": (2, 1)}])
def test_planes_of_different_jobs(other):
    with pytest.raises(TransportConfigError, match="more_planes: jobs differ in workers, lanes or racks"):
        SwitchSummation(CONFIGS[0], 0, ("h", 1), more_planes=[(replace(CONFIGS[1], **other), ("h", 2))])


@pytest.mark.parametrize(("wire", "names"), [("ethernet", ["eth0"]), ("udp-port", ["eth0", "eth1"])])
def test_each_plane_has_an_interface_of_its_own(wire, names):
    planes = {"more_planes": [(CONFIGS[1], ("h", 2))], "interfaces": names}
    with pytest.raises(TransportConfigError, match=f"interfaces: {', '.join(names)} for 2 planes by {wire}"):
        SwitchSummation(CONFIGS[0], 0, ("h", 1), wire=wire, **planes)


def numbered(first, rtts):
    """Statistics whose numbers are `first` and those after it."""
    names = [one.name for one in fields(WorkerStats) if one.type == "int"]
    numbers = {name: first + n for n, name in enumerate(names)}
    mean, least, most = rtts
    return WorkerStats(**numbers, dropped={"a": first}, rtt_mean=mean, rtt_least=least, rtt_most=most)


def test_statistics_of_planes_add_up():
    times = ((0.1, 0.05, 0.3), (0.4, 0.02, 0.5), (None, None, None))
    one, other, silent = (numbered(4 * n, each) for n, each in enumerate(times))
    total = added([one, other, silent])
    assert (total.contributions, total.resends, total.results, total.dropped) == (12, 15, 18, {"a": 12})
    assert (total.rtt_least, total.rtt_most) == (0.02, 0.5)
    assert total.rtt_mean == pytest.approx((2 * 0.1 + 6 * 0.4) / 8)
    assert added([silent, silent]).rtt_mean is added([silent, silent]).rtt_least is None
    assert added([one]) is one

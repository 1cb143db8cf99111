"""Sums over a star of processes and its links, and the errors that every worker gets when a part fails."""

import json
import os
import signal
import threading
import time
from dataclasses import asdict

import numpy as np
import pytest
from patience import PATIENCE_S, with_longer_timeouts

from peelsum.allreduce import Allreduce, Part, PlanMismatchError
from peelsum.processes import Child, ProcessError
from peelsum.processes.children import ADMISSION
from peelsum.topology import Star
from peelsum.transport.errors import StalledError, SwitchUnreachableError
from peelsum.transport.seats import plug_in

pytestmark = pytest.mark.usefixtures("forked_children")

WORKERS = 3


def on_every_worker(star, work):
    """What `work(worker_id, summation)` returned or raised, by worker."""
    outcomes = {}

    def run(seat):
        try:
            with plug_in(asdict(seat)) as summation:
                outcomes[seat.worker_id] = work(seat.worker_id, summation)
        except Exception as error:
            outcomes[seat.worker_id] = error

    threads = [threading.Thread(target=run, args=(seat,)) for seat in star.seats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
        assert not thread.is_alive()
    return outcomes


def tensor_of(worker):
    """A worker's sparse float32 tensor, seeded."""
    rng = np.random.default_rng(worker)
    values = rng.standard_normal(100_000).astype(np.float32)
    values[rng.random(100_000) > 0.02] = 0
    return values


def expected_total(results):
    """Return the int32 sum of the workers' reported inputs, in the order of workers, as int64."""
    return sum(r["t"].quantized.astype(np.int64) for r in results)


def not_finite(worker, summation):
    """Return the sum of a tensor that is not finite on worker 1, and of one that is."""
    values = tensor_of(worker)
    if worker == 1:
        values[17] = np.nan
    return Allreduce(summation).sum({"t": values, "u": tensor_of(worker)})


def mismatch(worker, summation):
    """Return the error of a sum in which worker 1 has a tensor of another length."""
    with pytest.raises(PlanMismatchError) as raised:
        Allreduce(summation).sum([np.zeros(99 if worker == 1 else 100, np.float32)])
    return raised.value


@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_sums_are_exact(loss):
    """In every form, one after the other, then what must reach every worker: what takes long is the star."""
    values = {"dense": "auto", "compact": "compact", "sketch": "sketch"}
    with Star(WORKERS, loss=loss, seed=3) as star:
        outcomes = on_every_worker(
            star,
            lambda w, summation: (
                [
                    Allreduce(summation, forms="dense" if f == "dense" else "sparse", values=v).sum(
                        {"t": tensor_of(w)}
                    )
                    for f, v in values.items()
                ]
                + [not_finite(w, summation), mismatch(w, summation)]
            ),
        )
    *by_form, not_finite_sums, mismatches = zip(*(outcomes[w] for w in range(WORKERS)), strict=True)
    for result in not_finite_sums:
        assert np.isnan(result["t"].values).all()
        assert np.isfinite(result["u"].values).all()
    assert {type(one) for one in mismatches} == {PlanMismatchError}
    for form, results in zip(values, by_form, strict=True):
        expected = expected_total(results)
        for worker, result in enumerate(results):
            assert result["t"].form == form
            np.testing.assert_array_equal(result["t"].total, expected)
            scaled = np.rint(tensor_of(worker).astype(np.float64) * 2.0 ** result["t"].scales)
            np.testing.assert_array_equal(result["t"].quantized, scaled)
            assert result["t"].values.tobytes() == results[0]["t"].values.tobytes()
    lost = sum(port["lost_in"] + port["lost_out"] for port in star.report.ports.values())
    assert (lost > 0) == (loss > 0)
    assert star.report.server["chunks_in_switch"] > 0


@pytest.mark.system
def test_a_plane_whose_switch_ends_ends_the_sum_of_every_worker():
    met = threading.Barrier(WORKERS)

    def named(timeout_s):
        def work(worker, summation):
            words = np.ones(256 * 400, np.uint32)
            assert (summation.sum_words([Part(words, "add")])[0] == WORKERS).all()
            if met.wait(PATIENCE_S) == 0:
                os.kill(star.process_ids[1], signal.SIGTERM)
            while True:
                summation.sum_words([Part(words, "add")])

        with Star(WORKERS, planes=2, timeout_s=timeout_s) as star:
            outcomes = on_every_worker(star, work)
            with pytest.raises(ProcessError, match="switch of plane 1: ended with status 0"):
                star.check()
        assert {type(outcome) for outcome in outcomes.values()} <= {StalledError, SwitchUnreachableError}
        assert all(str(outcome).startswith("plane 1: ") for outcome in outcomes.values())

    with_longer_timeouts(named)


@pytest.mark.system
def test_what_a_killed_run_left_in_the_switch_is_not_added_to_the_next():
    """Workers and server start again under one generation; worker 0's last packets are in slots still."""
    chunks = 100
    numbers = range(1, WORKERS + 1)
    words = {run: [np.full(256 * chunks, run * n, np.uint32) for n in numbers] for run in (7, 1000)}
    steps = {0: 2, 1: 1, 2: 1}

    def killed(worker, summation):
        run = summation._exchange.run

        def until_all_is_sent():
            events = run()
            if summation.stats().contributions > steps[worker] * chunks:  # and one chunk to join
                raise ConnectionAbortedError
            return events

        summation.sum_words([Part(words[7][worker], "add")])
        if steps[worker] > 1:  # alone: no result comes back
            summation._exchange.run = until_all_is_sent
            summation.sum_words([Part(words[7][worker], "add")])
        raise ConnectionAbortedError

    def again(worker, summation):
        return [summation.sum_words([Part(words[1000][worker], "add")])[0] for _ in range(2)]

    with Star(WORKERS, timeout_s=PATIENCE_S) as star:
        errors = on_every_worker(star, killed)
        assert {type(error) for error in errors.values()} == {ConnectionAbortedError}
        server = star._children["server"]
        os.kill(server.pid, signal.SIGKILL)
        server.stop()
        environment = {ADMISSION: json.dumps(star.seats[0].admission)}
        star._children["server"] = Child("server", server._process.args, environment=environment)
        star._children["server"].ready()
        outcomes = on_every_worker(star, again)
    for sums in outcomes.values():
        for total in sums:
            np.testing.assert_array_equal(total, np.uint32(1000 * (1 + 2 + 3)))


#: A sum takes as long where the links have a delay of 10 ms each.
SLOW_S = 0.04


def seconds_of_sums(star, enough=lambda number, quick: number == 12):
    """Return the seconds of each sum, by worker, once `enough`; all sums must be exact.

    enough: called with how many sums were done, and whether the last was quick on any worker.
    """

    def work(worker, summation):
        seconds, quick = [], 0
        while not enough(len(seconds), quick):
            own = np.arange(100, dtype=np.uint32) * (worker + 2) + len(seconds)
            own[0] = bool(seconds) and seconds[-1] < SLOW_S
            started = time.monotonic()
            (total,) = summation.sum_words([Part(own, "add")])
            seconds.append(time.monotonic() - started)
            quick = int(total[0])
            assert np.array_equal(total[1:], np.arange(1, 100) * (2 + 3) + 2 * (len(seconds) - 1))
            time.sleep(0.05)
        return seconds

    outcomes = list(on_every_worker(star, work).values())
    assert all(isinstance(outcome, list) for outcome in outcomes), outcomes
    return outcomes


@pytest.mark.system
def test_sums_over_links_that_become_slow_are_exact_and_as_slow_as_the_links(tmp_path):
    schedule = tmp_path / "links.csv"
    schedule.write_text("at_s,mbit,delay_ms\n0,1000,0\n0.3,10,20\n")
    with Star(2, schedule=schedule) as star:
        found = seconds_of_sums(star)
    # A worker that waits for the other sees the link's time at least.
    assert min(seconds for rounds in found for seconds in rounds[-3:]) >= SLOW_S


def test_sums_over_links_that_become_quick_become_quick(tmp_path):
    """Most of them do: on a busy machine, one may take longer than the link would."""
    schedule = tmp_path / "links.csv"
    schedule.write_text("at_s,mbit,delay_ms\n0,10,20\n0.3,1000,0\n")
    with Star(2, schedule=schedule) as star:
        seconds_of_sums(star, lambda _, quick: quick > 0)


@pytest.mark.parametrize("loss", [pytest.param(0.0, marks=pytest.mark.slow), 0.02])
def test_a_constant_delay_is_of_both_links_in_both_directions(loss):
    with Star(2, delay_ms=15, loss=loss) as star:
        found = seconds_of_sums(star)
    assert min(seconds for rounds in found for seconds in rounds) >= 0.06

"""Rivals on the same links: their sums are right under loss, and they send what their papers say."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from peelsum.simulation import Job, NetworkSection, Scenario, SimulationError, Straggler, TimersSection
from peelsum.simulation.collectives import COLLECTIVES, Transfers, ring
from peelsum.simulation.flows import replayed, run_collective
from peelsum.simulation.slot_model import run_protocol
from peelsum.simulation.slot_protocols import PROTOCOLS

LANES = 32
QUICK = TimersSection(first_answer=1e-3, resend_least=5e-5, resend_most=2e-3, need=2e-4, reply_gap=2e-5)


def scenario(workers: int, elements: int, **network: float) -> Scenario:
    job = Job(workers=workers, elements=elements, timers=QUICK)
    return Scenario(lanes=LANES, network=NetworkSection(**network), jobs=(job,))


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("network", [{}, {"loss": 0.02}, {"racks": 2, "oversubscription": 4.0, "queue": 50}])
def test_collectives_sum_exactly_and_lose_no_packet_uncounted(name: str, network: dict[str, float]) -> None:
    row = run_collective(scenario(8, 4000, **network), name)
    assert row.wrong == 0
    assert row.offered == row.delivered + sum(row.drops.values())
    assert (row.resends > 0) == (sum(row.drops.values()) > 0)


@pytest.mark.parametrize("name", ["ring", "binomial", "parameter_server", "sharded_server", "all_gather"])
def test_any_number_of_workers_and_words(name: str) -> None:
    assert [run_collective(scenario(w, n), name).wrong for w, n in ((2, 1), (3, 100), (7, 2))] == [0, 0, 0]


def test_a_collective_is_repeatable_and_its_straggler_holds_it_up() -> None:
    lossy = scenario(4, 4000, loss=0.02)
    assert run_collective(lossy, "ring") == run_collective(lossy, "ring")
    late = lossy.jobs[0].model_copy(update={"stragglers": (Straggler(worker=1, late_s=1e-3),)})
    assert run_collective(lossy.model_copy(update={"jobs": (late,)}), "ring").seconds > 1e-3


def test_each_sends_what_its_paper_says() -> None:
    frames = 32 * 64
    each = {name: run_collective(scenario(4, LANES * frames), name) for name in COLLECTIVES}
    for name in ("ring", "halving_doubling", "sharded_server"):
        assert each[name].packets == 4 * 2 * 3 * frames // 4
    assert each["all_gather"].packets == 4 * 3 * frames
    assert each["binomial"].packets == 2 * 3 * frames
    assert each["parameter_server"].packets == 2 * 4 * frames
    assert each["ring"].seconds < each["parameter_server"].seconds


def test_the_check_of_sums_finds_an_order_that_is_wrong() -> None:
    transfers = ring(4, 8)
    assert replayed(transfers, list(range(len(transfers.each)))) == 0
    assert replayed(transfers, list(reversed(range(len(transfers.each))))) > 0


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_slot_protocols_sum_exactly(name: str, loss: float) -> None:
    one = scenario(5, LANES * 300, loss=loss).model_copy(update={"slots": 256})
    if loss and not PROTOCOLS[name].survives_loss:
        with pytest.raises(SimulationError, match="omnireduce sends nothing again; use 0"):
            run_protocol(one, name, PROTOCOLS[name])
        return
    row = run_protocol(one, name, PROTOCOLS[name])
    assert row.wrong == 0
    assert row.offered == row.delivered + sum(row.drops.values())
    assert run_protocol(one, name, PROTOCOLS[name]) == row


def test_omnireduce_sends_a_stream_s_first_block_and_those_that_are_not_zero() -> None:
    chunks, one = 500, scenario(4, LANES * 500).model_copy(update={"slots": 256})
    non_zero = np.random.default_rng(1).random((4, chunks)) < 0.1
    row = run_protocol(one, "omnireduce", PROTOCOLS["omnireduce"], non_zero)
    assert row.wrong == 0
    # The first block of a stream is sent by every worker.
    assert row.packets == 4 * 256 + int(non_zero[:, 256:].sum())


def test_an_unknown_collective_gets_one_line() -> None:
    with pytest.raises(SimulationError, match=r"algorithm: 'rings' is unknown; use ring, "):
        run_collective(scenario(2, 10), "rings")
    with pytest.raises(SimulationError, match="3 is not a power of two for halving_doubling; use 2"):
        run_collective(scenario(3, 10), "halving_doubling")


def test_the_example_plugs_in_an_algorithm_and_a_protocol() -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "simulation_rivals.py"))
    collective, protocol = example["compared"]()
    assert (collective.wrong, protocol.wrong) == (0, 0)
    assert collective.seconds > protocol.seconds


def test_a_collective_is_a_function() -> None:
    def star(workers: int, words: int) -> Transfers:
        found = Transfers(workers, 1, rounds=2)
        up = tuple(found.add(w, 0, words, (), 0, True) for w in range(1, workers))
        for w in range(1, workers):
            found.add(0, w, words, up, 0, False)
        return found

    assert run_collective(scenario(4, 1000), "star", star).wrong == 0

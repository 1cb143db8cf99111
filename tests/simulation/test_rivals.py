"""Rivals on the same links: their sums are right under loss, and they send what their papers say."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.rivals.collectives import COLLECTIVES, ring
from benchmarks.rivals.flows import run_collective
from benchmarks.rivals.program_bench import RESEND, Message, RivalRow, SlotProtocol, Worker, run_protocol
from benchmarks.rivals.slot_protocols import (
    PROGRAMS,
    PROTOCOLS,
    SWITCHML_FLOATS,
    THC,
    BlockWorker,
    FloatPoolWorker,
    ThcWorker,
)
from peelsum.simulation import Job, NetworkSection, Scenario, SimulationError, TimersSection
from peelsum.simulation.scenario import Straggler

#: As many as in the experiments, so that each program is compiled only once.
LANES = 256
ROOT = Path(__file__).parents[2]
QUICK = TimersSection(first_answer=1e-3, resend_least=5e-5, resend_most=2e-3, need=2e-4, reply_gap=2e-5)


def scenario(workers, elements, **network):
    job = Job(workers=workers, elements=elements, timers=QUICK)
    return Scenario(lanes=LANES, network=NetworkSection(**network), jobs=(job,))


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("network", [{}, {"loss": 0.02}, {"racks": 2, "oversubscription": 4.0, "queue": 50}])
def test_collectives_sum_exactly_and_lose_no_packet_uncounted(name, network):
    row = run_collective(scenario(8, 4000, **network), name)
    assert row.wrong == 0
    assert row.offered == row.delivered + sum(row.drops.values())
    assert (row.resends > 0) == (sum(row.drops.values()) > 0)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_any_number_of_workers_and_words(name):
    assert [run_collective(scenario(w, n), name).wrong for w, n in ((2, 1), (3, 100), (7, 2))] == [0, 0, 0]


def test_a_collective_is_repeatable_and_its_straggler_holds_it_up():
    lossy = scenario(4, 4000, loss=0.02)
    assert run_collective(lossy, "ring") == run_collective(lossy, "ring")
    late = lossy.jobs[0].model_copy(update={"stragglers": (Straggler(worker=1, late_s=1e-3),)})
    assert run_collective(lossy.model_copy(update={"jobs": (late,)}), "ring").seconds > 1e-3


def test_each_sends_what_its_paper_says():
    frames = 32 * 64
    each = {name: run_collective(scenario(4, LANES * frames), name) for name in COLLECTIVES}
    for name in ("ring", "sharded_server"):
        assert each[name].packets == 4 * 2 * 3 * frames // 4
    assert each["all_gather"].packets == 4 * 3 * frames
    assert each["binomial"].packets == 2 * 3 * frames
    assert each["ring"].seconds < each["all_gather"].seconds


def test_the_check_of_sums_finds_an_order_that_is_wrong():
    transfers = ring(4, 8)
    assert transfers.wrong(list(range(len(transfers.each)))) == 0
    assert transfers.wrong(list(reversed(range(len(transfers.each))))) > 0


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(("workers", "loss"), [(2, 0.0), (5, 0.01), (8, 0.05)])
def test_slot_protocols_sum_exactly(name, workers, loss):
    one = scenario(workers, LANES * 300, loss=loss).model_copy(update={"slots": 256})
    row = run_protocol(one, name, PROTOCOLS[name])
    assert row.wrong == 0
    assert (row.resends > 0) == (loss > 0)
    assert row.offered == row.delivered + sum(row.drops.values())
    assert run_protocol(one, name, PROTOCOLS[name]) == row


def sparse_words(workers, elements, blocks, seed=1):
    """Return random words, uint32[workers, elements], in which a share `blocks` of blocks is not zero."""
    random = np.random.default_rng(seed)
    chunks = -(-elements // LANES)
    has = np.repeat(random.random((workers, chunks)) < blocks, LANES, axis=1)[:, :elements]
    return random.integers(0, 1 << 32, (workers, elements), np.uint32) * has


def test_omnireduce_sends_the_lanes_of_first_blocks_and_of_those_that_are_not_zero():
    one = scenario(4, LANES * 500).model_copy(update={"slots": 256})
    words = sparse_words(4, LANES * 500, 0.1)
    row = run_protocol(one, "omnireduce", PROTOCOLS["omnireduce"], [words])
    has = words.reshape(4, 500, LANES).any(2)[:, 128:]
    # The first block of each of 128 streams is sent by every worker. All answer each request, most without
    # lanes.
    full, requests = 4 * 128 + int(has.sum()), 128 + int(has.any(0).sum())
    assert (row.wrong, row.packets) == (0, 4 * requests)
    assert row.octets == 4 * LANES * (full + 4 * requests) + 58 * 8 * requests


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(("elements", "blocks"), [(1, 1.0), (5_003, 0.0), (20_001, 0.05), (20_001, 0.7)])
def test_sums_of_real_words_are_exact(name, elements, blocks):
    words = sparse_words(5, elements, blocks)
    found = []

    def remembered(job, number):
        worker = PROTOCOLS[name].worker(job, number)
        found.append(worker.results)
        return worker

    one = scenario(5, elements).model_copy(update={"slots": 256})
    row = run_protocol(one, name, replace(PROTOCOLS[name], worker=remembered), [words])
    # Python's integers share no code with the model's sums.
    expected = [sum(column) % (1 << 32) for column in zip(*words.tolist(), strict=True)]
    for results in found:
        flat = np.zeros((-(-elements // LANES), LANES), np.uint32)
        for chunk, lanes in results.items():
            flat[chunk] = lanes
        assert flat.reshape(-1)[:elements].tolist() == expected
    assert (row.wrong, len(found)) == (0, 5)


def test_the_check_of_words_finds_one_wrong_bit():
    class Wrong(BlockWorker):
        def take(self, result):
            return super().take(result._replace(words=result.words ^ np.uint32(result.chunk == 3)))

    one = scenario(3, LANES * 10)
    protocol = replace(PROTOCOLS["omnireduce"], worker=Wrong)
    assert run_protocol(one, "wrong", protocol, [sparse_words(3, LANES * 10, 1.0)]).wrong == 3


@pytest.mark.parametrize(("workers", "loss"), [(2, 0.0), (3, 0.01), (8, 0.01)])
def test_switchml_sums_floats_within_its_bound(workers, loss):
    random = np.random.default_rng(4)
    # Chunks of different exponents, one of zeros, and one of the smallest values.
    exponents = np.repeat(random.integers(-40, 40, 301), LANES).astype(np.float64)[: LANES * 300 + 7]
    values = random.normal(size=(workers, exponents.size)) * 2**exponents
    values[:, LANES : 2 * LANES] = 0
    values[:, :LANES] = np.finfo(np.float32).smallest_subnormal
    words = values.astype(np.float32).view(np.uint32)
    one = scenario(workers, words.shape[1], loss=loss).model_copy(update={"slots": 256})
    row = run_protocol(one, "switchml", SWITCHML_FLOATS, [words])
    assert row.wrong == 0
    # Each of 128 streams has one round more than there are chunks.
    assert row.packets - row.resends == workers * (301 + 128)


@pytest.mark.parametrize(("workers", "loss"), [(2, 0.0), (8, 0.01)])
def test_thc_sums_floats_within_its_bound_in_half_of_a_float_s_bits(workers, loss):
    random = np.random.default_rng(6)
    values = random.normal(size=(workers, 8 * LANES * 150 + 5)).astype(np.float32)
    values[:, 8 * LANES : 16 * LANES] = 0
    one = scenario(workers, values.shape[1], loss=loss).model_copy(update={"slots": 128})
    results = []

    class Remembered(ThcWorker):
        def __init__(self, job, number):
            super().__init__(job, number)
            results.append(self.results)

    row = run_protocol(one, "thc", replace(THC, worker=Remembered), [values.view(np.uint32)])
    assert row.wrong == 0
    # 64 streams have a round more than there are chunks; values take 4 bits there, and 8 back.
    assert row.packets - row.resends == workers * (151 + 64)
    assert row.words == pytest.approx(row.packets * LANES, rel=0.01)
    sums = np.concatenate([results[0][chunk].view(np.float32) for chunk in range(151)])[: values.shape[1]]
    errors = sums - values.astype(np.float64).sum(0)
    # Levels are chosen at random, so that errors are much smaller than the bound, and zero in the mean.
    assert abs(errors.mean()) < 0.01 * workers
    assert errors.std() < 0.5 * workers**0.5


def test_thc_s_sums_are_for_8_workers():
    with pytest.raises(SimulationError, match="9: THC's 8-bit sums are for up to 8; use fewer"):
        run_protocol(scenario(9, 100), "thc", THC)


def test_the_check_of_floats_finds_an_exponent_of_another_chunk():
    class Wrong(FloatPoolWorker):
        def take(self, result):
            return super().take(result._replace(extra=result.extra - (result.chunk == 130)))

    words = np.random.default_rng(5).normal(size=(2, LANES * 300)).astype(np.float32).view(np.uint32)
    one = scenario(2, LANES * 300).model_copy(update={"slots": 256})
    assert run_protocol(one, "wrong", replace(SWITCHML_FLOATS, worker=Wrong), [words]).wrong == 2


@pytest.mark.parametrize("name", PROTOCOLS)
def test_jobs_share_a_switch_and_sum_exactly(name):
    one = scenario(2, LANES * 800)
    jobs = tuple(one.jobs[0].model_copy(update={"workers": workers}) for workers in (2, 3, 2))
    alone = run_protocol(one.model_copy(update={"slots": 512}), name, PROTOCOLS[name])
    both = one.model_copy(update={"slots": 512, "jobs": jobs})
    row = run_protocol(both, name, PROTOCOLS[name])
    assert row == run_protocol(both, name, PROTOCOLS[name])
    assert (row.wrong, len(row.job_seconds)) == (0, 3)
    assert row.offered == row.delivered + sum(row.drops.values())
    assert row.in_switch <= alone.in_switch


def test_each_job_has_stragglers_of_its_own():
    job, frame_bits = Job(workers=2, elements=LANES * 100), 8 * 1082
    slow = job.model_copy(update={"stragglers": (Straggler(worker=1, late_s=1e-4, gbps=10.0),)})
    row = run_protocol(Scenario(lanes=LANES, jobs=(job, slow)), "switchml", PROTOCOLS["switchml"])
    assert row.wrong == 0
    assert row.job_seconds[0] < 5e-5
    assert row.job_seconds[1] > 1e-4 + 100 * frame_bits / 10e9


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"slots": 1 << 17}, "slots: 131072: rivals' programs are for 65536; use 65536 or fewer"),
        ({"network": NetworkSection(racks=2)}, r"network\.racks: 2: rivals' programs are for 1; use 1"),
        ({"jobs": (Job(workers=33),)}, r"jobs\.0\.workers: 33: rivals' programs are for 32"),
    ],
)
def test_a_scenario_that_programs_have_no_room_for_gets_one_line(change, error):
    with pytest.raises(SimulationError, match=error):
        run_protocol(scenario(2, 100).model_copy(update=change), "atp", PROTOCOLS["atp"])


def test_atp_s_server_sums_what_finds_no_slot():
    job = Job(workers=2, elements=LANES * 4000, window=1024, initial_window=1024, timers=QUICK)
    long = Scenario(
        lanes=LANES, slots=256, network=NetworkSection(delay_us=100.0, queue=1 << 14), jobs=(job,) * 2
    )
    row = run_protocol(long, "atp", PROTOCOLS["atp"])
    assert row.wrong == 0
    assert row.in_switch < 0.5
    # Both workers' packets of a chunk reach the server, instead of one sum.
    assert row.to_servers / 8000 == pytest.approx(2 - row.in_switch, rel=0.05)


class Careless(Worker):
    """A worker that sends one message, and answers nothing; its timer runs out at once if it has one."""

    message: Message | None = None
    timer: float | None = None

    def start(self, now):
        """Send the message."""
        return [] if self.message is None else [self.message]

    def receive(self, message, now):
        """Ignore what arrives."""
        return []

    def next_timer(self):
        """Return the timer."""
        return self.timer

    def expire(self, now):
        """Send nothing."""
        return []


ONE = np.ones(LANES, np.uint32)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "worker 0 of job 1 has 0 of 2 sums, and links lost 0 packets"),
        ({"timer": 0.0}, r"Careless\.next_timer: returns .* after each call of expire; return a later time"),
        ({"message": Message(1 << 32, ONE)}, "chunk: 4294967296; give 0 to 4294967295"),
        ({"message": Message(0, ONE, worker=-1)}, "worker: -1; give 0 to 255"),
        ({"message": Message(0, ONE[1:])}, rf"words: uint32\[{LANES - 1}\] .* send uint32\[{LANES}\]"),
        ({"message": Message(0, ONE.astype(np.int64))}, rf"words: int64\[{LANES}\] from worker 0"),
        ({"message": Message(0, ONE, flags=RESEND, port=77)}, r"port 77: leads nowhere; send to one of 0, 1"),
    ],
)
def test_a_careless_worker_gets_one_line(fields, error):
    protocol = replace(PROTOCOLS["atp"], worker=type("Careless", (Careless,), fields))
    with pytest.raises(SimulationError, match=error):
        run_protocol(scenario(2, 2 * LANES), "atp", protocol)


def test_an_unknown_collective_gets_one_line():
    with pytest.raises(SimulationError, match=r"algorithm: 'rings' is unknown; use ring, "):
        run_collective(scenario(2, 10), "rings")


def test_the_page_about_a_program_of_one_s_own_shows_the_committed_one_and_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/how-to/bring-your-own-aggregator.md").read_text()
    program, session = (re.findall(rf"```{language}\n(.*?)```", page, re.S) for language in ("c", "python"))
    assert (PROGRAMS / "counting.p4").read_text().endswith(program[0])
    exec(session[0], {})
    assert re.fullmatch(r"\d+ us, 3128 packets\n", capsys.readouterr().out)


@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH")
def test_a_program_with_the_page_s_maximum_keeps_the_largest_lanes(tmp_path):
    page = (ROOT / "docs/how-to/bring-your-own-aggregator.md").read_text()
    counting, maximum = re.findall(r"```c\n(.*?)```", page, re.S)
    program = counting.replace("control Aggregate", f"{maximum}\ncontrol Aggregate")
    program = program.replace("Lanes() lanes;", "Maximum() lanes;").replace("lane_op_t.ADD, ", "")
    (tmp_path / "maximum.p4").write_text(program)
    compile_it = ["p4c-bm2-ss", "-I", PROGRAMS, "-o", tmp_path / "maximum.json", tmp_path / "maximum.p4"]
    subprocess.run(compile_it, check=True, capture_output=True)

    hosts, wrong = re.findall(r"```python\n(.*?)counting = |is `(lambda .*?)`\.", page, re.S)
    scope = {}
    exec(hosts[0], scope)
    protocol = SlotProtocol(tmp_path / "maximum.json", scope["EagerWorker"], wrong=eval(wrong[1]))
    row = run_protocol(scenario(3, 100).model_copy(update={"lanes": 7}), "maximum", protocol)
    assert row.wrong == 0


def test_a_collective_of_one_s_own_runs_as_the_page_shows_it():
    page = (ROOT / "docs/reference/simulation.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    scope = {}
    exec(block, scope)
    assert isinstance(scope["row"], RivalRow)

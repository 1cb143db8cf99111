"""`peelsum plan`: the choice is an allreduce's, the reasons add up, and checks compare with what was sent.

Its cost model is compared with the packet level, in virtual time.
"""

import json
from itertools import product
from statistics import median

import pytest
from command_line import peelsum

from benchmarks.rivals.sparse_sums import measured
from peelsum.allreduce import Choice, InvalidRequestError, NetworkModel, PlanSettings
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.indexes import UnionCounts
from peelsum.allreduce.plan import Layout, TensorPlan
from peelsum.allreduce.step import StepDecoder
from peelsum.bench import plan as plan_module
from peelsum.bench.codec import timing
from peelsum.bench.codec.timing import add_to_history, expected_statistics
from peelsum.bench.plan import method_rows, plan, step_of
from peelsum.bench.point import Point
from peelsum.bench.which_form import all_candidates
from peelsum.compress import AXES, COLLECTIVES, METHODS, LinkModel, SwitchPath, Workload, crossovers
from peelsum.simulation import Job, NetworkSection, Scenario
from peelsum.simulation.simulation import frame_bytes

SLOW = Point(1 << 20, 0.01, 0.01, 1e-6, 4, "uniform")


@pytest.mark.parametrize("gbps", [0.01, 1.0, 400.0])
@pytest.mark.parametrize("rtt", [1e-6, 3e-3])
def test_the_choice_is_what_an_allreduce_takes(gbps, rtt):
    request = Point(1 << 20, 0.01, gbps, rtt, 4, "rows")
    chooser = Chooser(network=request.network)
    tensor = TensorPlan("g", (1 << 20,), "float32", Choice("dense"))
    add_to_history(chooser, Layout([tensor]), expected_statistics("rows", 1 << 20, 0.01))
    (chosen,), one_round = chooser.choose([tensor], PlanSettings())
    assert plan(request)["choice"]["form"] == chosen.choice.form
    assert (plan(request)["choice"]["exchanges"] == 1) == one_round
    assert plan(request)["choice"]["index"] == (chosen.choice.index.form if chosen.choice.index else "none")


def test_candidates_are_sorted_and_their_parts_add_up():
    planned = plan(SLOW)
    times = [row["total_ms"] for row in planned["candidates"]]
    assert times == sorted(times)
    assert {row["form"] for row in planned["candidates"]} == {"dense", "compact", "sketch"}
    for row in planned["candidates"]:
        parts = row["words_ms"] + row["exchanges_ms"] + row["codec_ms"]
        assert row["total_ms"] == pytest.approx(parts, abs=1e-3)
        assert row["words_ms"] == pytest.approx(8 * row["bytes"] / SLOW.gbps / 1e6, rel=1e-3, abs=1e-2)
        assert row["measured_bytes"] is None


def test_the_reason_names_the_choice_and_what_each_other_form_would_add():
    planned = plan(SLOW)
    first, *others, precision = planned["why"]
    assert first.startswith(f"{planned['choice']['form']} with {planned['choice']['index']}")
    assert {line.split()[0] for line in others} == {"dense", "compact", "sketch"}
    assert "multiples of 2**-28 where" in precision
    more = Point(1 << 20, 0.01, 0.01, 1e-6, 16, "uniform")
    assert "multiples of 2**-26 where" in plan(more)["why"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("support", ["uniform", "rows", "columns"])
def test_a_check_finds_predicted_bytes_near_those_sent(support):
    request = Point(1 << 20, 0.02, 1, 3e-3, 4, support)
    for row in plan(request, check=True)["candidates"]:
        assert row["bytes_error"] == pytest.approx(row["bytes"] / row["measured_bytes"] - 1, abs=1e-3)
        assert abs(row["bytes_error"]) < 0.05, row
        assert row["codec_error"] == pytest.approx(row["codec_ms"] / row["measured_codec_ms"] - 1, abs=0.01)


@pytest.mark.parametrize("workers", [2, 3, 16])
def test_a_ring_takes_a_part_of_the_words_in_every_step(workers):
    words, hop_s = 480_000, 1e-4
    steps = [32 * words / workers / 10e9 + hop_s for _ in ("reduce", "gather") for _ in range(workers - 1)]
    ring = NetworkModel.ring(workers, 10, hop_s)
    assert ring.seconds(words, 1) == pytest.approx(sum(steps))
    assert ring.seconds(0, 3) == pytest.approx(3 * len(steps) * hop_s)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((1, 10, 0), "workers: 1 are too few for a ring; use 2"), ((2, 0, 0), "gbps: 0")],
)
def test_an_impossible_ring_is_refused(arguments, message):
    with pytest.raises(InvalidRequestError, match=message):
        NetworkModel.ring(*arguments)


@pytest.mark.system
def test_each_form_s_step_is_said_to_be_predicted_or_measured_and_simulated():
    request = Point(1 << 14, 0.01, 1, 3e-3, 4, "uniform")
    alone = plan(request)
    assert {form["ms"] for form in alone["forms"]} == {None}
    for form in alone["forms"]:
        rows = [row["total_ms"] for row in alone["candidates"] if row["form"] == form["form"]]
        assert form["predicted_ms"] == pytest.approx(min(rows), abs=1e-4)
    options = "--elements 16384 --density 0.01 --gbps 1 --rtt 0.003 --check"
    done = peelsum("plan", *options.split())
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if " ms a step, predicted; " in line]
    assert [line.split(":")[0] for line in said] == ["dense", "compact", "sketch"]
    assert all("ms of codec, measured, and" in line and line.endswith("simulated.") for line in said)


PLAN = ("plan", "--elements", "1000000", "--gbps", "10", "--rtt", "0.001", "--density")


def test_json_is_the_plan():
    done = peelsum(*PLAN, "0.01", "--json")
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)
    assert planned == plan(Point(1_000_000, 0.01, 10, 0.001, 4, "uniform"))
    assert planned.keys() == {"choice", "why", "candidates", "forms", "methods", "crossovers", "advice"}
    assert planned["forms"][0].keys() == {"form", "predicted_ms", "ms", "codec_ms", "wrong"}
    names = {"method", "sent_bytes", "latency_ms", "words_ms", "codec_ms", "total_ms"}
    assert planned["methods"][0].keys() == names
    assert planned["choice"].keys() == {
        *("form", "index", "layout", "bytes", "exchanges", "words_ms", "exchanges_ms", "codec_ms"),
        *("total_ms", "measured_bytes", "measured_codec_ms", "bytes_error", "codec_error"),
    }


def test_the_command_prints_ways_and_reasons():
    done = peelsum(*PLAN, "0.01")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["form", "index", "bytes"]
    reasons = lines.index("") + 1
    assert lines[1].split()[0] == lines[reasons].split()[0]
    forms = lines.index("", reasons) + 1
    methods = lines.index("", forms) + 1
    assert [line.split(":")[0] for line in lines[forms : methods - 1]] == ["dense", "compact", "sketch"]
    assert all(line.endswith("ms a step, predicted; not measured.") for line in lines[forms : methods - 1])
    assert lines[methods].split()[:2] == ["method", "bytes"]
    assert {line.split()[0] for line in lines[methods + 1 : methods + 9]} == set(METHODS)
    assert lines[methods + 9] == ""
    assert all(line.startswith("At ") and "becomes faster than" in line for line in lines[methods + 10 : -1])
    assert lines[-1] == plan(Point(1_000_000, 0.01, 10, 0.001, 4, "uniform"))["advice"]


@pytest.mark.parametrize(
    ("gbps", "ratio", "start"),
    [(0.1, 0.01, "Compress: "), (400.0, 0.01, "Do not compress: dense_"), (0.1, 1.0, "Do not compress: ")],
)
def test_methods_are_compared_and_dense_is_advised_where_it_wins(gbps, ratio, start):
    request = Point(1 << 20, 0.3, gbps, 1e-4, 4, "uniform", ratio)
    planned = plan(request)
    assert planned["methods"] == method_rows(Workload(1 << 20, ratio, 4, LinkModel(5e-5, gbps)))
    assert planned["advice"].startswith(start)
    assert {change["axis"] for change in planned["crossovers"]} <= set(AXES)
    expected = [change["at"] for change in planned["crossovers"] if change["axis"] == "gbps"]
    assert [change.at for change in crossovers(step_of(request), "gbps")] == expected


def test_no_compression_is_advised_where_an_exact_form_is_faster():
    planned = plan(Point(65536, 0.01, 1, 0.001, 4, "uniform"))
    assert planned["choice"]["total_ms"] < planned["methods"][0]["total_ms"]
    assert planned["advice"].startswith("Do not compress: sketch with bloom (")
    assert " sends all non-zero elements in " in planned["advice"]


def test_one_worker_has_nothing_to_sum():
    planned = plan(Point(1 << 10, 0.1, 1, 1e-3, 1, "uniform"))
    assert (planned["methods"], planned["crossovers"]) == ([], [])
    assert planned["advice"] == "One worker has nothing to sum."


def test_the_largest_tensors_have_a_plan():
    assert plan(Point(2**39, 0.01, 1, 3e-3, 4, "uniform"))["choice"]["form"] == "compact"


#: Collectives by the simulation's names and the cost model's.
SIMULATED = {"peelsum": "switch", "ring": "all_reduce_ring", "all_gather": "all_gather"}


def error_of(name, workers, gbps, delay_us, words):
    """Return the cost model's time of a collective over the simulated one, less 1.

    Processors take no time. There are two links between workers, whose queues are never full.
    """
    network = NetworkSection(gbps=gbps, delay_us=delay_us, queue=1 << 16, mark_from=1 << 16)
    job = Job(workers=workers, elements=words)
    scenario = Scenario(network=network, jobs=(job,))
    link = LinkModel(2 * (delay_us * 1e-6 + 8e-9 * frame_bytes(scenario.lanes) / gbps), gbps)
    row = measured(scenario, name)
    assert row["wrong"] == 0
    path = SwitchPath(scenario.lanes, job.window, scenario.slots)
    model = path.network(link) if name == "peelsum" else COLLECTIVES[SIMULATED[name]](link, workers)
    return float(model.seconds(words, 1) / row["seconds"] - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIMULATED)
def test_the_median_error_is_below_15_percent_over_rates_delays_sizes_and_workers(name):
    grid = product((2, 4), (0.1, 10.0), (10.0, 1000.0), (1_000, 25_000))
    assert median(abs(error_of(name, *point)) for point in grid) < 0.15


def test_a_window_that_has_to_open_takes_longer_than_the_model_says():
    """The page names this limit: on long, fast links the model lets a worker send a whole window at once."""
    assert error_of("peelsum", 2, 10.0, 1000.0, 100_000) == pytest.approx(-0.54, abs=0.1)


@pytest.mark.parametrize("form", ["dense", "sketch"])
def test_a_step_ahead_is_measured_with_values_that_were_not_predicted(form, monkeypatch):
    """With a history of the same values, `--check` showed half of the time that such a step takes."""
    values, _ = timing.tensor("uniform", 1 << 16, 0.1, 0)
    values[100] = 1e6  # in a block whose largest value was smaller in the step before
    overflow = []

    class Decoder(StepDecoder):
        def decode(self, protocol):
            overflow.append(protocol.overflow)
            super().decode(protocol)

    monkeypatch.setattr(timing, "StepDecoder", Decoder)
    ways = all_candidates(values.size, UnionCounts.uniform(values.size, 0.1))
    choice = next(way.choice for way in ways if way.one_round and way.choice.form == form)
    device, settings = timing.TimedDevice.of("cpu"), PlanSettings()
    timing.measure_step(device, choice, values, settings, 0, one_round=True)  # which compares each element
    assert overflow[0] is not None
    assert len(overflow[0].sums)


def test_milliseconds_have_no_exponent():
    values = (0.00002048, 0.0125, 20.0, 999.4, 999.6, 12_345.6)
    texts = ["0.0000205 ms", "0.0125 ms", "20 ms", "999 ms", "1,000 ms", "12,346 ms"]
    assert [plan_module._ms(value) for value in values] == texts

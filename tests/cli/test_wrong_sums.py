"""A wrong sum ends a command with status 1, even after other output."""

import importlib
import json
from collections.abc import Iterator
from dataclasses import fields
from types import SimpleNamespace

import pytest
from command_line import peelsum

import peelsum.bench.soak as bench_soak
import peelsum.simulation.simulation as simulations
from peelsum.bench.allreduce import rows as bench_allreduce
from peelsum.bench.fairness import rows as bench_fairness
from peelsum.bench.loss import rows as bench_loss
from peelsum.bench.methods import measured as bench_plan
from peelsum.bench.simulation import emulated as bench_emulated
from peelsum.bench.simulation import rows as bench_simulation
from peelsum.bench.train import rows as bench_train

#: The module; in its package the name is the command's.
demo = importlib.import_module("peelsum.cli.demo.command")
WORKERS = 2
#: What every worker reports of a step.
STEP = {
    "loss": 2.0,
    "tensors": 7,
    "equal": 7,
    "density": 0.5,
    "sparse_density": 0.25,
    "elements": 1000,
    "encode_s": 0.001,
    "network_s": 0.002,
    "decode_s": 0.003,
}


class PlayedProcesses:
    """Demo processes whose workers report scripted steps, at a star with fixed counters."""

    def __init__(self, steps: list[list[dict[str, object]]]) -> None:
        totals = [{"sent_packets": 10, "resends": 1}] * WORKERS
        self._reports: Iterator[object] = iter([*steps, totals])

    def start(self, *_: object) -> object:
        server = {"chunks_in_switch": 9, "chunks_at_server": 1}
        seats = [SimpleNamespace(admission={"lanes": 256})]
        return SimpleNamespace(seats=seats, report=SimpleNamespace(server=server), close=lambda: None)

    def gather_reports(self) -> object:
        return next(self._reports)


def played(monkeypatch: pytest.MonkeyPatch, *equal: int, as_json: bool) -> None:
    """Run the demo with `equal` sums of each worker in its second and last step."""
    steps = [[STEP] * WORKERS, [{**STEP, "equal": count} for count in equal]]
    monkeypatch.setattr(demo, "Processes", lambda *_: PlayedProcesses(steps))
    demo.command(workers=WORKERS, steps=2, loss=0.0, seed=0, json=as_json)


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("equal", [(7, 6), (0, 7), (6, 6)])
def test_one_sum_that_is_not_gloos_ends_the_demo_with_status_1(monkeypatch, capsys, equal, as_json):
    with pytest.raises(SystemExit) as ended:
        played(monkeypatch, *equal, as_json=as_json)
    assert ended.value.code == 1
    said = capsys.readouterr().out
    if as_json:
        values = json.loads(said)
        assert not values["exact"]
        assert (values["tensors_checked"], values["tensors_exact"]) == (28, 14 + sum(equal))
    else:
        assert f"{14 + sum(equal)} of 28 sums equal gloo's" in said


def test_a_demo_whose_sums_are_all_right_just_returns(monkeypatch, capsys):
    played(monkeypatch, 7, 7, as_json=True)
    values = json.loads(capsys.readouterr().out)
    assert values["exact"]
    assert (values["tensors_checked"], values["tensors_exact"]) == (28, 28)
    assert values["wire_bytes_per_worker"] == 20 * (42 + 16 + 4 * 256) // WORKERS
    assert values["dense_bytes_per_worker"] == 4 * 1000 * 2
    assert values["resends"] == 2
    assert (values["chunks_in_switch"], values["chunks_at_server"]) == (9, 1)


def row_of(kind, **changes):
    """Return a benchmark's row, with 1 in every field that is not given."""
    return kind(**{field.name: 1 for field in fields(kind)} | changes)


def loss(monkeypatch, wrong):
    star = SimpleNamespace(
        server={"chunks_in_switch": 1, "chunks_at_server": 1}, ports={}, verdicts={}, queues={}
    )
    counted = [{"resends": 0, "window_cuts": 0}]
    runs = iter([bench_loss.Run([0.1] * 9, one, counted, star) for one in (0, wrong)])
    monkeypatch.setattr(bench_loss, "run", lambda *_: next(runs))
    return peelsum("bench", "loss", "--loss", "0.1", "--json")


def allreduce(monkeypatch, wrong):
    rows = [row_of(bench_allreduce.Row, wrong=wrong), row_of(bench_allreduce.Row, wrong=0)]
    monkeypatch.setattr(bench_allreduce, "_rows", lambda *_: (row for row in rows))
    return peelsum("bench", "allreduce", "--json")


def fairness(monkeypatch, wrong):
    rows = iter([row_of(bench_fairness.Row, wrong=wrong)] + [row_of(bench_fairness.Row, wrong=0)] * 9)
    monkeypatch.setattr(bench_fairness, "_row", lambda *_: next(rows))
    monkeypatch.setattr(bench_fairness, "_PLAYED", {"virtual": lambda scene: None, "udp": lambda scene: None})
    return peelsum("bench", "fairness", "--jobs", "2", "--json")


def train(monkeypatch, wrong):
    rows = [row_of(bench_train.Row, exact=not wrong), row_of(bench_train.Row, exact=None)]
    monkeypatch.setattr(bench_train, "_rows", lambda *_: rows)
    monkeypatch.setattr(bench_train, "compared", lambda given: given)
    return peelsum("bench", "train", "--json")


def plan(monkeypatch, wrong):
    rows = [row_of(bench_plan.MeasuredRow, wrong=wrong), row_of(bench_plan.MeasuredRow, wrong=0)]
    monkeypatch.setattr(bench_plan, "measure", lambda grid: rows)
    return peelsum("bench", "plan", "--json")


def simulation(monkeypatch, wrong):
    rows = [row_of(bench_simulation.Row, wrong=wrong), row_of(bench_simulation.Row, wrong=0)]
    monkeypatch.setattr(bench_simulation, "slots_rows", lambda: iter(rows))
    return peelsum("bench", "simulation", "slots", "--json")


def emulated(monkeypatch, wrong):
    rows = iter([row_of(bench_emulated.Compared, wrong=wrong), row_of(bench_emulated.Compared, wrong=0)])
    monkeypatch.setattr(bench_emulated, "compared_rows", lambda: rows)
    return peelsum("bench", "simulation", "emulated", "--json")


@pytest.mark.parametrize("bench", [loss, allreduce, fairness, train, plan, simulation, emulated])
def test_a_benchmark_that_met_a_wrong_sum_prints_its_rows_and_ends_with_status_1(monkeypatch, bench):
    done = bench(monkeypatch, 1)
    assert done.returncode == 1
    assert len(json.loads(done.stdout)) == 2
    done = bench(monkeypatch, 0)
    assert done.returncode == 0
    assert len(json.loads(done.stdout)) == 2


def soak(monkeypatch, wrong):
    monkeypatch.setattr(bench_soak, "soak", lambda *_, tell: row_of(bench_soak.Report, wrong=wrong))
    return peelsum("bench", "soak", "--json")


def simulate(monkeypatch, wrong):
    jobs = row_of(simulations.JobRow, wrong=wrong), row_of(simulations.JobRow, wrong=0)
    monkeypatch.setattr("peelsum.simulation.simulate", lambda *_: row_of(simulations.Report, jobs=jobs))
    return peelsum("simulate", "--json")


@pytest.mark.parametrize("command", [soak, simulate])
def test_a_report_of_one_wrong_sum_is_printed_and_ends_with_status_1(monkeypatch, command):
    for wrong in (1, 0):
        done = command(monkeypatch, wrong)
        assert done.returncode == wrong, done.stderr
        assert isinstance(json.loads(done.stdout), dict)

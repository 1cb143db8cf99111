"""A wrong sum ends a command with status 1, even after other output."""

import json
from dataclasses import fields
from types import SimpleNamespace

import pytest
from command_line import benchmarks, peelsum

import peelsum.simulation.simulation as simulations
from peelsum.cli.demo import command as demo

WORKERS = 2
#: What every worker reports of a step with a sketch, and of one without.
STEP = {
    "loss": 2.0,
    "tensors": 7,
    "density": 0.5,
    "elements": 1000,
    "candidates": 200,
    "cells": 260,
    "left_over": 1,
    "sparse_words": 330,
    "bound_words": 300.0,
    "encode_s": 0.001,
    "network_s": 0.002,
    "decode_s": 0.003,
}
DENSE_STEP = STEP | {"candidates": 0, "cells": 0, "left_over": 0, "network_s": 0.02}


class PlayedProcesses:
    """Demo processes whose workers report scripted steps, then dense ones, at a star with fixed counters."""

    def __init__(self, steps):
        totals = [{"sent_packets": 10, "resends": 1}] * WORKERS
        dense = [DENSE_STEP] * WORKERS, [DENSE_STEP] * WORKERS, [{"sent_packets": 40, "resends": 2}] * WORKERS
        self._reports = iter([*steps, totals, *dense])

    def start(self, *_):
        server = {"chunks_in_switch": 9, "chunks_at_server": 1}
        seats = [SimpleNamespace(admission={"lanes": 256})]
        return SimpleNamespace(seats=seats, report=SimpleNamespace(server=server), close=lambda: None)

    def gather_reports(self):
        return next(self._reports)


def played(monkeypatch, *, as_json):
    """Run the demo with scripted reports of two steps with sketches."""
    monkeypatch.setattr(demo, "Processes", lambda *_: PlayedProcesses([[STEP] * WORKERS] * 2))
    demo.command(workers=WORKERS, steps=2, form="sketch", loss=0.0, seed=0, json=as_json)


def test_a_demo_adds_up_what_workers_report(monkeypatch, capsys):
    played(monkeypatch, as_json=True)
    values = json.loads(capsys.readouterr().out)
    assert (values["exact"], values["tensors_checked"]) == (True, 56)
    sparse, dense = values["sparse"], values["dense"]
    assert [costs["wire_bytes_per_worker"] for costs in (sparse, dense)] == [
        packets * (42 + 16 + 4 * 256) for packets in (10, 40)
    ]
    assert (sparse["resends"], dense["resends"]) == (2, 4)
    assert (sparse["sum_ms_per_step"], dense["sum_ms_per_step"]) == (6, 24)
    assert (values["bytes_ratio"], values["time_ratio"]) == (4, 4)
    assert (values["candidates"], values["cells"], values["left_over"]) == (400, 520, 2)
    assert values["over_lower_bound"] == 1.1
    assert (values["chunks_in_switch"], values["chunks_at_server"]) == (9, 1)


def test_the_tables_of_a_demo_fit_a_terminal_and_tell_of_the_sketch(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    played(monkeypatch, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    facts = dict(line.split(maxsplit=1) for line in map(str.strip, lines) if " " in line)
    assert facts["sketches"] == "520 cells for 400 candidates, 1.30 each"
    assert facts["peeled"] == "99.50%, left over 2"
    assert facts["words"] == "1.10 times the lower bound"
    assert facts["exact"] == "all 56 sums equal gloo's, bit for bit"
    assert facts["ratio"].split() == ["1", ":", "4.0"] * 2


def row_of(kind, **changes):
    """Return a benchmark's row, with 1 in every field that is not given."""
    return kind(**{field.name: 1 for field in fields(kind)} | changes)


def simulate(monkeypatch, wrong):
    jobs = row_of(simulations.SimulatedJob, wrong=wrong), row_of(simulations.SimulatedJob, wrong=0)
    monkeypatch.setattr("peelsum.simulation.simulate", lambda *_: row_of(simulations.Report, jobs=jobs))
    return peelsum("simulate", "--json")


def test_a_report_of_one_wrong_sum_is_printed_and_ends_with_status_1(monkeypatch):
    for wrong in (1, 0):
        done = simulate(monkeypatch, wrong)
        assert done.returncode == wrong, done.stderr
        assert isinstance(json.loads(done.stdout), dict)


BENCH = """
from benchmarks import Experiment, Size


def measure(seed, point):
    return {"wrong": WRONG if point else 0, "exact": EXACT if point else None}


EXPERIMENT = Experiment(
    name="mine",
    title="Mine",
    about="Sums.",
    measure=measure,
    columns={"wrong": "wrong sums", "exact": "whether all are right"},
    sizes={"usual": Size([{"point": (0, 1)}], 1)},
)
"""


@pytest.mark.parametrize(("wrong", "exact", "status"), [(0, True, 0), (1, True, 1), (0, False, 1)])
def test_a_benchmark_that_met_a_wrong_sum_prints_its_rows_and_ends_with_status_1(
    tmp_path, wrong, exact, status
):
    mine = tmp_path / "mine.py"
    mine.write_text(BENCH.replace("WRONG", str(wrong)).replace("EXACT", str(exact)))
    done = benchmarks(str(mine), "--out", str(tmp_path), "--json")
    assert done.returncode == status, done.stderr
    rows = {row["point"]: (row["wrong"], row["exact"]) for row in json.loads(done.stdout)}
    assert rows == {0: (0, None), 1: (wrong, exact)}

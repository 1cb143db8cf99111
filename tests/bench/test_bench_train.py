"""`bench train`: the rows requested, exact sums, links with and without a rate."""

import json
import os

import pytest
from command_line import peelsum

pytest.importorskip("torch")

from torch_accuracy import wrong_averages
from torch_ranks import run_ranks

from peelsum.bench.train import rows as bench
from peelsum.bench.train.rows import ShapedLan
from peelsum.processes import ProcessError
from peelsum.topology import TopologyError
from peelsum.training import TrainingDataError, check_model, make_task

TRAIN = ("bench", "train")
OPTIONS = {"model": "ncf", "small": True, "path": None, "seed": 0, "device": "cpu", "top_k": None}
STEPS = {"steps": 2, "warm_ups": 1}


def refused(self):
    raise TopologyError("ip: not found on PATH; install iproute2")


@pytest.mark.system
def test_json_rows_compare_all_paths(monkeypatch):
    monkeypatch.setattr(ShapedLan, "__enter__", refused)
    done = peelsum(*TRAIN, "--workers", "2", "--gbps", "1", "--steps", "2", "--warm-ups", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["path"]: row for row in json.loads(done.stdout)}
    assert list(rows) == ["gloo", "hook-gloo", "fp16", "switch", "switch-dense"]
    switch, dense, gloo = rows["switch"], rows["switch-dense"], rows["gloo"]
    assert (switch["exact"], dense["exact"], gloo["exact"]) == (True, True, None)
    assert (switch["gbps"], dense["gbps"], gloo["gbps"]) == (1.0, 1.0, None)
    assert (switch["shaped_by"], dense["shaped_by"], gloo["shaped_by"]) == (*["switch ports"] * 2, None)
    assert "compact" in switch["form"]
    assert dense["form"] == "dense"
    assert switch["bytes_per_step"] < dense["bytes_per_step"]
    assert 0 < switch["density_worker"] < switch["density_union"] < 0.5
    speedup = dense["iteration_ms"] / switch["iteration_ms"]
    assert switch["speedup_over_dense"] == pytest.approx(speedup, abs=0.01)
    # Gloo's links had no rate: a switch of 1 Gbit/s is not compared with them.
    assert "gloo is measured at no set rate, and not compared: ip: not found on PATH" in done.stderr
    assert switch["speedup_over_gloo"] is switch["aggregation_over_gloo"] is None
    speedup = gloo["iteration_ms"] / rows["fp16"]["iteration_ms"]
    assert rows["fp16"]["speedup_over_gloo"] == pytest.approx(speedup, abs=0.01)
    for row in rows.values():
        assert 0 < row["iteration_least_ms"] <= row["iteration_ms"] <= row["iteration_most_ms"]
        assert row["compute_ms"] > 0
        bits = 32 * 470_449  # of the small NCF's parameters
        assert row["aggregation_gbps"] == pytest.approx(bits / row["aggregation_ms"] / 1e6, rel=0.01)
    over = dense["aggregation_ms"] / switch["aggregation_ms"]
    assert switch["aggregation_over_dense"] == pytest.approx(over, rel=0.01)


@pytest.mark.system
def test_cpu_time_of_every_backend_is_compared_with_gloo_s():
    done = peelsum(*TRAIN, "--cpu", "--workers", "2", "--steps", "3", "--warm-ups", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["path"]: row for row in json.loads(done.stdout)}
    assert list(rows) == ["switch", "switch-dense", "gloo", "hook-gloo", "fp16"]
    assert all(row["gbps"] is None and row["shaped_by"] is None for row in rows.values())
    assert [rows[path]["exact"] for path in rows] == [True, True, None, True, None]
    for path, row in rows.items():
        assert row["cpu_of_gloo"] == pytest.approx(row["cpu_ms"] / rows["gloo"]["cpu_ms"], abs=0.01)
        if path.startswith("switch"):  # two processes that only add up
            assert 0 < row["switch_cpu_ms"] < row["cpu_ms"]
        else:
            assert row["switch_cpu_ms"] == 0
    assert rows["hook-gloo"]["bytes_per_step"] == rows["switch"]["bytes_per_step"]
    assert 2 * rows["fp16"]["bytes_per_step"] == rows["gloo"]["bytes_per_step"]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_gloo_runs_over_links_of_the_rate():
    measured = bench.bench_train(OPTIONS | STEPS, 2, (0.02, 1.0), cpu=False)
    rows = [row for row in measured if row["path"] in bench.GLOO_PATHS]
    if rows[0]["shaped_by"] is None:
        pytest.skip("this process may not create namespaces")
    points = [(path, gbps) for gbps in (0.02, 1.0) for path in ("gloo", "hook-gloo", "fp16")]
    assert [(row["path"], row["gbps"]) for row in rows] == points
    assert {row["shaped_by"] for row in rows} == {"namespaces"}
    slow, fast = rows[0], rows[3]
    # 1.9 MB each way at 20 Mbit/s, less what the buckets hold at first.
    assert slow["network_ms"] > 400
    assert slow["aggregation_ms"] > 400
    assert slow["iteration_least_ms"] > fast["iteration_least_ms"]


@pytest.mark.system
def test_the_worker_that_failed_is_named(tmp_path):
    message = f"worker [01]: {tmp_path}: has no CIFAR-10 files .* and no folder of images; pass"
    options = OPTIONS | STEPS | {"model": "vgg19", "path": str(tmp_path)}
    with pytest.raises(ProcessError, match=message):
        bench.bench_train(options, 2, (1.0,), cpu=False)


def test_a_task_of_ones_own_is_trained(tmp_path, monkeypatch):
    text = "from peelsum.training import make_task\n\ndef make():\n    return make_task('ncf')\n"
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    task, expected = (make_task(name, seed=3).model.state_dict() for name in ("mine:make", "ncf"))
    assert task.keys() == expected.keys()
    with pytest.raises(TrainingDataError, match="--model: 'mine:other' cannot be imported"):
        check_model("mine:other")


def test_averages_with_other_bits_on_a_worker_or_beyond_the_bound_are_wrong():
    assert run_ranks(2, wrong_averages) == [[0, 1, 1], [0, 0, 1]]

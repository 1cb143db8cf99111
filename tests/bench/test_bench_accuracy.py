"""`bench accuracy`: shares, methods, and rows of finished runs."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from command_line import benchmarks

from benchmarks.accuracy.in_process import Traffic, WorkerThreads
from benchmarks.accuracy.methods import METHODS, MethodError, parse
from benchmarks.accuracy.subjects import SUBJECTS, SharesError, divide, make_subject
from benchmarks.accuracy.training import TrainingRun, TrainingSetting, train
from benchmarks.experiments.accuracy import compared, fastest
from peelsum import compress
from peelsum.summation import Part

LABELS = np.repeat(np.arange(10), 50)


def finished(method="dense", seed=0, **changes):
    """A run of four steps that did not happen."""
    run = TrainingRun(
        setting=TrainingSetting("digits", method, seed=seed),
        data="digits",
        metric="accuracy",
        steps=4,
        elements=1000,
        curve=[(0, 0.1), (2, 0.5), (4, 0.9)],
        kind="dense",
        wire_bytes=16_000,
        payload_bytes=0,
        traffic=Traffic(exchanges=8, parts=8, summed_words=4100),
        compute_s=0.002,
        compress_s=0.001,
    )
    return replace(run, **changes)


@pytest.mark.parametrize("shares", ["iid", "label", "0.3", "100"])
def test_every_example_is_in_one_share(shares):
    divided = divide(LABELS, 4, shares, seed=2)
    assert sorted(np.concatenate(divided).tolist()) == list(range(LABELS.size))
    again = divide(LABELS, 4, shares, seed=2)
    assert all(map(np.array_equal, divided, again))
    assert not np.array_equal(divided[0], divide(LABELS, 4, shares, seed=3)[0])


def test_shares_differ_in_labels_as_they_say():
    def labels(shares):
        return float(np.mean([np.unique(LABELS[share]).size for share in divide(LABELS, 4, shares, seed=0)]))

    assert labels("iid") == labels("100") == 10
    assert labels("label") <= 3.5
    assert labels("label") < labels("0.1") < 10


@pytest.mark.parametrize(
    ("shares", "workers", "error"),
    [
        ("evenly", 4, "shares: 'evenly' is unknown; use iid, label, or an alpha such as 0.5"),
        ("0", 4, "shares: alpha 0 is out of range; use 0.01 to 1000"),
        ("nan", 4, "shares: alpha nan is out of range"),
        ("iid", 501, "shares: iid leaves worker 500 without examples"),
    ],
)
def test_shares_that_cannot_be_made(shares, workers, error):
    with pytest.raises(SharesError, match=error):
        divide(LABELS, workers, shares, seed=0)


def test_methods_are_made_of_names_arguments_and_flags():
    for text, compressor in {
        "top-k": compress.TopK(0.01),
        "top-k:0.1/bucket": compress.TopK(0.1, per="bucket"),
        "top-k:sample=0.5:ratio=0.1/momentum": compress.TopK(0.1, sample=0.5, momentum=0.9),
        "packed:4:rotate=true": compress.PackedIntegers(4, rotate=True),
        "top-k+qsgd:0.02": compress.TopK(0.02, quantizer=compress.QSGD(4)),
        "top-k+qsgd:0.02:bits=8": compress.TopK(0.02, quantizer=compress.QSGD(8)),
        "dgc:0.02": compress.DGC(0.02, warm_up_steps=25),
        "dgc:0.02:warm_up_steps=3": compress.DGC(0.02, warm_up_steps=3),
    }.items():
        assert parse(text, 100).compressor == compressor
    assert parse("qsgd", 100, seed=3).compressor == compress.QSGD(4, seed=3)
    assert parse("top-k+qsgd:seed=1", 100, seed=3).compressor == compress.TopK(
        0.01, seed=1, quantizer=compress.QSGD(seed=3)
    )
    texts = ("qsgd/feedback", "qsgd", "top-k/no-feedback")
    assert [parse(text, 100).feedback for text in texts] == [True, None, False]
    assert parse("top-k/momentum", 100).momentum == 0.9
    # Tests before this one may have registered compressors of their own.
    assert ("dense", "exact", *compress.registered())[: len(METHODS)] == METHODS
    for name in METHODS:
        made = parse(name, 8).compressor
        assert made is None if name in ("dense", "exact") else isinstance(made, compress.registered()[name])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("best", "compressor: 'best' is unknown; use one of dense, exact"),
        ("top-k:much", "compressor: 'top-k:much': ratio: 'much' is not a number; write a number"),
        ("top-k:2", "compressor: 'top-k:2': ratio: 2.0 is not a share"),
        ("top-k/fast", "compressor: 'fast' of 'top-k/fast' is unknown; use no-feedback"),
        ("dense/bucket", "compressor: 'dense/bucket' has an argument or flag; write dense alone"),
        ("fp16:2", "compressor: fp16 takes no value; leave out ':2'"),
        ("top-k:size=3", "compressor: 'size' of 'top-k:size=3' is unknown; use ratio, "),
        ("qsgd+fp16", "compressor: 'qsgd+fp16' does not choose elements; write e.g. top-k+qsgd"),
        ("star+qsgd", "which are shared; use e.g. PackedIntegers(8)"),
        ("top-k/momentum/no-feedback", "has momentum without feedback; leave one out"),
    ],
)
def test_methods_that_do_not_exist(text, error):
    with pytest.raises(MethodError) as raised:
        parse(text, 100)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "images")) for name in SUBJECTS]
)
def test_a_subject_is_the_same_for_the_same_seed_and_can_be_measured(name):
    subject, same, different = make_subject(name), make_subject(name), make_subject(name, seed=1)
    assert math.isfinite(subject.measure())
    assert subject.measure() == same.measure()
    assert not all(map(torch.equal, subject.model.parameters(), different.model.parameters()))
    rng = np.random.default_rng(0)
    assert subject.model(*subject.batch(np.arange(5), rng)).isfinite()
    assert subject.labels.size > 4 * subject.batch_size


def test_a_run_is_the_same_for_the_same_seed():
    def values(seed):
        run = train(TrainingSetting("digits", "star:0.05", workers=2, shares="0.5", seed=seed, steps=12))
        return asdict(replace(run, compute_s=0.0, compress_s=0.0))

    first = values(3)
    assert [step for step, _ in first["curve"]] == [0, 10, 12]
    assert first == values(3)
    assert first["curve"] != values(4)["curve"]


def test_training_ends_where_it_is_no_longer_finite(monkeypatch):
    monkeypatch.setattr("benchmarks.accuracy.subjects.SmallConvNet.forward", infinite)
    run = train(TrainingSetting("digits", "top-k", workers=2, steps=50))
    assert run.curve[-1] == (1, None)
    (row,) = compared([run], [run], [1.0], 0.0)
    assert [row[name] for name in ("final", "target", "reached", "time_s")] == [None, None, 0, None]


def infinite(self, images, labels):
    return self.scores(images).sum() * math.inf


def test_a_failing_worker_does_not_leave_others_waiting():
    def work(worker):
        if worker == 1:
            raise ValueError("worker 1 fails")
        return threads.members[worker].sum_words([Part(np.zeros(3, np.uint32), "add")])

    with WorkerThreads(3) as threads, pytest.raises(ValueError, match="worker 1 fails"):
        threads.run(work)


def test_a_row_adds_up_what_was_measured_and_modelled():
    link = compress.LinkModel(1e-4, 1.0)
    slow = [finished(seed=seed, curve=[(0, 0.1), (2, 0.5), (4, 0.9 + 0.02 * seed)]) for seed in (0, 1)]
    fields = {"kind": "indexed", "wire_bytes": 4000, "payload_bytes": 800}
    quick = [finished("top-k", seed, curve=[(0, 0.1), (2, 0.95), (4, 0.8)], **fields) for seed in (0, 1)]
    (dense,), (sparse,) = (compared(slow, mine, [1.0], 1e-4) for mine in (slow, quick))
    assert dense["target"] == pytest.approx(0.1 + 0.95 * (0.91 - 0.1), abs=1e-4)
    assert (dense["final"], dense["final_spread"]) == (pytest.approx(0.91), pytest.approx(0.0141, abs=1e-4))
    assert (dense["at_80_percent"], sparse["at_80_percent"]) == (dense["final"], 0.8)
    assert (dense["reached"], dense["steps_to_target"], sparse["steps_to_target"]) == (2, 4, 2)
    assert (dense["bytes_per_step"], sparse["bytes_per_step"], sparse["times_less"]) == (4000, 1000, 4)
    step_s = 0.002 + fastest(quick[0], link).seconds
    assert sparse["time_s"] == pytest.approx(2 * step_s, abs=1e-4)
    assert sparse["faster"] == pytest.approx(dense["time_s"] / sparse["time_s"], rel=0.01)
    assert sparse["pays_below_gbps"] == 1000.0  # it needs half the steps
    assert (dense["pays_below_gbps"], dense["faster"]) == (None, 1.0)


def test_dense_gradients_take_the_planner_s_fastest_path():
    """Without time to encode, the paths of floats are those of `peelsum plan`."""
    for gbps in (0.1, 100.0):
        link = compress.LinkModel(1e-3, gbps)
        path = fastest(finished(compress_s=1.0, elements=100_000), link)
        methods = [method for method in compress.DENSE if method != "dense_switch"]
        rows = compress.costs(compress.Workload(100_000, 1.0, 4, link), methods)
        assert path.network_s == pytest.approx(rows[0].seconds)
        assert path.name == rows[0].method.replace("dense_", "float ")


def test_gathered_values_take_the_planner_s_time():
    link = compress.LinkModel(1e-3, 1.0)
    traffic = Traffic(exchanges=10**6, parts=10**6)
    run = finished("top-k", kind="indexed", payload_bytes=4 * 8 * 1000, traffic=traffic)
    step = compress.Workload(100_000, 0.01, 4, link, select_s=0.0)
    assert fastest(run, link).name == "all_gather"
    assert fastest(run, link).network_s == pytest.approx(compress.cost("top_k_all_gather", step).seconds)


@pytest.mark.system
def test_quick_rows_compare_with_dense_training():
    done = benchmarks("accuracy", "--quick", "--gbps", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["compressor"]: row for row in json.loads(done.stdout)}
    dense, signs = rows["dense"], rows["ef-sign"]
    assert (dense["faster"], signs["trained"], signs["seeds"]) == (1.0, 20, 1)
    assert signs["compute_ms"] == dense["compute_ms"]  # the same runs
    assert signs["times_less"] > 8
    assert min(signs["compute_ms"], signs["compress_ms"], signs["network_ms"]) > 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--model", "bert"), "--model: 'bert' cannot be used; use digits, images"),
        (("--compressor", "zip"), "compressor: 'zip' is unknown"),
        (("--compressor", "packed:4", "--workers", "8"), "bits: 4"),
        (("--compressor", "top-k/momentum", "--model", "ratings"), "ratings is trained by Adam"),
        (("--workers", "1"), "--workers: '1' cannot be used; use 2 to 32"),
    ],
)
def test_invalid_options_are_one_line(arguments, error, tmp_path):
    quick = ("--quick", "--compressor", "top-k") if "--compressor" not in arguments else ("--quick",)
    done = benchmarks("accuracy", *quick, *arguments, "--out", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    *_, line = done.stderr.splitlines()  # after what failed
    assert error in line

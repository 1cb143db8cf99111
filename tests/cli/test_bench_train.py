"""`bench train`: rows as promised, exact sums, links with and without a rate, densities."""

import json
import os

import pytest

pytest.importorskip("torch")

from typer.testing import CliRunner

from peelsum.cli import bench_train as bench
from peelsum.cli.app import app
from peelsum.cli.bench_train_links import ShapedLan
from peelsum.topology import TopologyError

KEYS = {
    *("model", "workers", "gbps", "path", "form", "density_worker", "density_union", "bytes_per_step"),
    *("iteration_ms", "compute_ms", "encode_ms", "network_ms", "decode_ms"),
    *("speedup_over_dense", "speedup_over_gloo", "exact"),
}
REQUEST = bench.Request("ncf", workers=2, gbps=(1.0,), steps=2, warm_ups=1)


def refused(self: ShapedLan) -> ShapedLan:
    raise TopologyError("ip: not found on PATH; install iproute2")


def test_json_rows_compare_the_three_paths(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ShapedLan, "__enter__", refused)
    bench.bench_train(REQUEST, json=True)
    out, errors = capsys.readouterr()
    assert "gloo runs over loopback, at no set rate: ip: not found" in errors
    rows = {row["path"]: row for row in json.loads(out)}
    assert all(row.keys() == KEYS for row in rows.values())
    switch, dense, gloo = rows["switch"], rows["switch-dense"], rows["gloo"]
    assert (switch["exact"], dense["exact"], gloo["exact"]) == (True, True, None)
    assert (switch["gbps"], dense["gbps"], gloo["gbps"]) == (1.0, 1.0, None)
    assert "compact" in switch["form"]
    assert dense["form"] == "dense"
    assert switch["bytes_per_step"] < dense["bytes_per_step"]
    assert 0 < switch["density_worker"] < switch["density_union"] < 0.5
    assert switch["speedup_over_dense"] == pytest.approx(
        dense["iteration_ms"] / switch["iteration_ms"], abs=0.01
    )
    assert switch["speedup_over_gloo"] == pytest.approx(
        gloo["iteration_ms"] / switch["iteration_ms"], abs=0.01
    )
    assert all(row["iteration_ms"] > 0 and row["compute_ms"] > 0 for row in rows.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_gloo_runs_over_links_of_the_rate() -> None:
    try:
        with ShapedLan(2) as lan:
            rows = list(bench._by_gloo(bench.Request("ncf", 2, (0.02, 1.0), steps=1, warm_ups=1), lan))
    except TopologyError as error:
        pytest.skip(str(error))
    slow, fast = rows
    assert (slow.gbps, fast.gbps) == (0.02, 1.0)
    # 1.9 MB each way at 20 Mbit/s, less what the buckets hold at first.
    assert slow.network_ms > 400
    assert slow.network_ms > 2 * fast.network_ms


def test_a_table_names_what_is_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(request: bench.Request) -> list[bench.Row]:
        shares = ("ncf", 2, 1.0, "switch", "compact", 0.1, 0.2, 1_000_000)
        switch = bench.Row(*shares, 50.0, 10.0, 1.0, 30.0, 1.0, None, None, exact=False)
        dense = bench.replace(switch, path="switch-dense", iteration_ms=100.0, network_ms=160.0)
        return [switch, dense, bench.replace(switch, path="gloo", iteration_ms=75.0, gbps=None, exact=None)]

    monkeypatch.setattr(bench, "_rows", rows)
    with pytest.raises(SystemExit):  # a sum was wrong
        bench.bench_train(REQUEST)
    out = capsys.readouterr().out
    assert "2.00x" in out
    assert "1.50x" in out
    assert "NO" in out
    assert "Best here: 2.00 times an iteration, at 1 Gbit/s, and 5.06 times a sum" in " ".join(out.split())


def test_densities_are_of_every_tensor_and_of_all() -> None:
    result = CliRunner().invoke(app, ["bench", "train", "--model", "ncf", "--densities", "--json"])
    assert result.exit_code == 0, result.output
    found = {one["tensor"]: one for one in json.loads(result.stdout)}
    assert {"users.weight", "perceptron.0.weight", "all"} < found.keys()
    assert found["all"]["elements"] == sum(one["elements"] for one in found.values()) / 2
    for one in found.values():
        assert 0 < one["union"]["2"] <= one["union"]["4"] <= one["union"]["8"] <= 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "resnet"], "'resnet' is unknown; use one of ncf, lstm, vgg19, bert"),
        (["--gbps", "fast"], "'fast' is no rate"),
        (["--gbps", "0"], "out of range"),
        (["--workers", "1"], "out of range"),
        (["--top-k", "2"], "out of range"),
        (["--data", "/nowhere", "--densities"], "does not exist"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(app, ["bench", "train", *arguments])
    assert result.exit_code == 2
    assert complaint in " ".join(result.output.replace("│", " ").split())

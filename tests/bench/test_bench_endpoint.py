"""`bench endpoint`: the counted sums are exact; one run through the command."""

import pytest
from command_line import peelsum

from peelsum.bench.endpoint import rates as rates
from peelsum.bench.endpoint.rates import WrongSumError
from peelsum.bench.endpoint.rows import bench_endpoint
from peelsum.wire import Batch


def test_a_row_for_each_way_has_its_share_of_bare_sockets(capsys: pytest.CaptureFixture[str]) -> None:
    rows = bench_endpoint(lanes=(32,), seconds=0.02)
    assert [(row.way, row.lanes) for row in rows] == [("memory", 32), ("sockets", 32), ("bare", 32)]
    bare = rows[-1].packets_per_core_s
    for row in rows:
        assert row.share_of_bare == pytest.approx(row.packets_per_core_s / bare, abs=0.001)
    assert rows[0].packets_per_s is None
    assert all(row.packets_per_s > 0 for row in rows[1:])
    assert capsys.readouterr() == ("", "")


def test_the_table_names_what_was_measured() -> None:
    done = peelsum("bench", "endpoint", "--lanes", "64", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    assert "endpoint and sockets" in done.stdout
    assert "bare sockets" in done.stdout


def test_a_result_that_differs_by_one_bit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = rates.as_results

    def spoiling(batch: Batch, lanes: int) -> Batch:
        honest(batch, lanes)[-1, -1] ^= 1
        return batch

    monkeypatch.setattr(rates, "as_results", spoiling)
    with pytest.raises(WrongSumError, match=r"element \d+: \d+ came back instead of \d+"):
        rates.in_memory(32, 0.0)

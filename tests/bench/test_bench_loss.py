"""`bench loss`: a lossy network beside one without, and the check of every sum."""

import json

import numpy as np
import pytest
from command_line import peelsum

from peelsum.bench.loss import rows as bench
from peelsum.bench.loss.rows import bench_loss
from peelsum.bench.loss.worker import expected, words_of

SHAPE = {"workers": 2, "lanes": 32, "elements": 5000, "seed": 3}


@pytest.mark.system
def test_each_share_is_compared_with_no_loss() -> None:
    shape = [text for name, value in SHAPE.items() for text in (f"--{name}", str(value))]
    done = peelsum("bench", "loss", "--loss", "0.02", "--seconds", "0", *shape, "--json")
    assert done.returncode == 0, done.stderr
    none, some = json.loads(done.stdout)
    assert (none["loss"], none["lost_packets"], none["share_lost"]) == (0, 0, 0)
    # A busy machine answers late: chunks sent again without loss are summed by the server.
    assert none["summed_in_switch"] > 0.9
    assert some["loss"] == 0.02
    assert some["lost_packets"] > 0
    assert some["resends"] > 0
    assert some["share_lost"] == pytest.approx(1 - some["rate_gbit_s"] / none["rate_gbit_s"], abs=0.01)
    assert {key: some[key] for key in SHAPE} == SHAPE
    assert none["wrong"] == some["wrong"] == 0


def test_rows_count_wrong_elements_and_take_the_median(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(loss: float, *_: int) -> bench.Run:
        report = bench.StarReport({}, {"chunks_in_switch": 1, "chunks_at_server": 1}, {})
        return bench.Run([0.5, 0.1, 0.2], int(loss > 0), [{"resends": 1, "window_cuts": 2}], report)

    monkeypatch.setattr(bench, "run", ran)
    rows = bench_loss(losses=(0.5,), elements=1000)
    assert [(row.loss, row.wrong, row.step_ms) for row in rows] == [(0.0, 0, 200.0), (0.5, 1, 200.0)]
    assert capsys.readouterr() == ("", "")


def test_the_expected_sum_is_of_all_workers_words() -> None:
    total = expected(6, seed=1, workers=3)
    for i in range(6):
        assert int(total[i]) == sum(int(words_of(6, 1, worker)[i]) for worker in range(3)) % 2**32
    assert np.unique(total).size > 1

"""`bench codec`: its keys, and the arithmetic of its sizes, shares and ratios."""

import json
import time

import pytest
from command_line import benchmarks, peelsum
from numba import config

from benchmarks.experiments import codec, sequence
from peelsum.allreduce.costs import lower_bound_bits
from peelsum.bench.codec import rows as bench
from peelsum.bench.codec import timing
from peelsum.bench.codec.timing import NotEnoughMemoryError, TimedDevice, require_memory, tensor

N = 1 << 16
LHC_FORMS = ("lhc_published", "lhc", "lhc_best")
FORMS = [*LHC_FORMS, *(form for form, _ in bench.WAYS)]


def rows_of(support, density):
    return list(codec.measure(0, N, density, support, 1.3, "cpu"))


@pytest.mark.parametrize("support", ["uniform", "rows"])
def test_rows_of_every_form_and_ratios_to_lhc(support):
    rows = rows_of(support, 0.05)
    assert [row["form"] for row in rows] == FORMS
    by_form = {row["form"]: row for row in rows}
    count = tensor(support, N, 0.05, 0)[1].size
    bound = lower_bound_bits(N, count) / N
    for row in rows:
        assert row["over_lower_bound"] == pytest.approx(row["bits_per_element"] / bound, rel=1e-3)
        assert (row["rounds"] is None) == (row["form"] in ("auto", "compact"))
        assert (row["cells_per_non_zero"] is None) == (row["form"] not in LHC_FORMS)
        seconds = (1 / row["encode_gbps"] + 1 / row["decode_gbps"]) * 32 * N / 1e9
        assert row["codec_ms"] == pytest.approx(1e3 * seconds, rel=0.02)
        for name in ("best", "published"):
            lhc = by_form[f"lhc_{name}"]
            size, time = row[f"size_ratio_to_{name}"], row[f"time_ratio_to_{name}"]
            assert size == round(row["bits_per_element"] / lhc["bits_per_element"], 4)
            assert time == round(row["codec_ms"] / lhc["codec_ms"], 4)
    published, smallest, best = rows[:3]
    assert best["codec_ms"] <= min(published["codec_ms"], smallest["codec_ms"])
    assert published["cells_per_non_zero"] == pytest.approx(2, abs=512 / (0.04 * N))
    assert smallest["recovered_by_peeling"] == 1
    if support == "uniform":
        compact = by_form["compact"]["bits_per_element"]
        scales = N // 512  # blocks of 512 elements: the smallest with at most a word for 32 others
        assert compact == pytest.approx(1 + 32 * (count + 1 + scales) / N, abs=1e-4)
        assert by_form["auto"]["bits_per_element"] < compact


def test_what_peeling_leaves_over_is_counted_and_sent():
    roomy, tight = (
        next(bench.bench_codec("uniform", N, 0.05, ways=[("sketch", "bitmap")], cells_per_candidate=cells))
        for cells in (1.6, 0.9)
    )
    assert roomy["recovered_by_peeling"] == 1
    assert 0.1 < tight["recovered_by_peeling"] < 0.9
    count = tensor("uniform", N, 0.05, 0)[1].size
    sent_again = 32 * (1 - tight["recovered_by_peeling"]) * count / N
    cells = 32 * count * 0.9 / N
    # 128 blocks have scales. Rows of cells are rounded up, by at most 1 %.
    more = tight["bits_per_element"] - (1 + 32 * (1 + 128) / N + cells + sent_again)
    assert 0 <= more + 1e-3 <= 0.01 * cells + 2e-3


def test_where_lhc_recovers_everything_by_no_size_it_has_no_smallest_row():
    rows = rows_of("uniform", 0.95)
    assert [row["form"] for row in rows] == [form for form in FORMS if form != "lhc"]
    assert all(row["time_ratio_to_best"] is not None for row in rows)


def test_the_command_prints_medians_and_all_rows_as_json():
    command = ("bench", "codec", "--elements", "4096", "--density", "0.01", "--repetitions", "2")
    rows = json.loads(peelsum(*command, "--json").stdout)
    assert [row["form"] for row in rows] == [form for form, _ in bench.WAYS] * 2
    heading, *lines = peelsum(*command).stdout.splitlines()
    assert heading.split()[:5] == ["elements", "density", "support", "form", "index"]
    assert [line.split()[3] for line in lines] == [form for form, _ in bench.WAYS]


def test_what_cannot_be_measured_is_refused(monkeypatch):
    with pytest.raises(bench.CodecBenchError, match=r"--density: 0.6 is too dense.* use at most 0\.5"):
        bench.random_tensor("columns", N, 0.6, 0, "cpu")
    with pytest.raises(bench.CodecBenchError, match=r"--density: .* no non-zeros; increase"):
        bench.random_tensor("uniform", 64, 1e-6, 0, "cpu")
    monkeypatch.setattr(timing, "free_bytes", lambda: 2**30)
    require_memory(2**25, 0.01)
    with pytest.raises(NotEnoughMemoryError, match=r"--elements: 67,108,864 .* use at most 42,"):
        require_memory(2**26, 0.01)
    monkeypatch.setattr(timing, "free_bytes", lambda: None)
    require_memory(2**40, 1)


def test_sequences_count_words_of_steps_that_change(tmp_path):
    options = ("--sequence", "dense", "--out", str(tmp_path), "--json")
    done = benchmarks("sequence", "--elements", "4096", *options)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    kinds = {(row["network"], row["way"]) for row in rows}
    assert len(rows) == len(kinds) == len(sequence.NETWORKS) * len(sequence.WAYS)
    dense = next(row for row in rows if (row["network"], row["way"]) == ("words", "auto"))
    assert dense["density"] == pytest.approx((10 + 20 * 0.01) / 30, rel=0.01)
    assert 1 < dense["over_lower_bound"] < 1.25
    assert dense["exchanges"] >= 2


@pytest.mark.parametrize(("cores", "clock"), [(1, time.thread_time), (2, time.perf_counter)])
def test_other_processes_do_not_count_where_one_thread_works(cores, clock, monkeypatch):
    monkeypatch.setattr(config, "NUMBA_NUM_THREADS", cores)
    assert TimedDevice.of("cpu").clock is clock

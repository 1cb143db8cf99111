"""The time of each form: simulated exchanges, exact sums, no step quicker than its links, and the map."""

from dataclasses import replace

import pandas as pd
import pytest

from benchmarks.experiment import find, load
from benchmarks.experiments.which_form import over_links
from peelsum.allreduce import Allreduce
from peelsum.allreduce.plan import FORMS
from peelsum.bench import which_form
from peelsum.bench.point import Point
from peelsum.bench.which_form import LoopbackSummation

POINT = Point(elements=1 << 14, density=0.02, gbps=0.1, rtt=5e-3, workers=2)


@pytest.mark.parametrize(("gbps", "rtt"), [(1.0, 20e-3), pytest.param(10.0, 1e-3, marks=pytest.mark.slow)])
def test_long_exchanges_take_as_long_as_if_all_of_them_were_simulated(gbps, rtt, monkeypatch):
    monkeypatch.setattr(which_form, "WINDOW", 128)
    chunks = 7 * 128 + 77
    which_form.exchange.cache_clear()
    extended = which_form.exchange(gbps, rtt, 2, chunks)
    monkeypatch.setattr(which_form, "_SIMULATED_WINDOWS", 100)
    which_form.exchange.cache_clear()
    whole = which_form.exchange(gbps, rtt, 2, chunks)
    which_form.exchange.cache_clear()
    assert extended == (pytest.approx(whole[0], rel=1e-6), 0)
    assert whole[1] == 0


def test_a_simulated_step_is_exact_and_takes_its_codec_its_words_and_its_round_trips():
    forms = which_form.simulate_forms(POINT)
    assert [form.form for form in forms] == list(FORMS)
    for form in forms:
        assert form.wrong == 0
        assert form.ms - form.codec_ms > 1e3 * POINT.rtt
        assert form.codec_ms > 0
        assert form.predicted_ms > 0
    dense = forms[0]
    assert dense.ms - dense.codec_ms > 1e3 * POINT.rtt + 1e3 * 32 * POINT.elements / (POINT.gbps * 1e9)


def test_other_links_change_no_step_in_memory_unless_they_change_the_index():
    near = which_form.simulate_forms(POINT)
    far = which_form.simulate_forms(replace(POINT, rtt=8e-3))
    assert [form.codec_ms for form in far] == [form.codec_ms for form in near]
    assert all(there.ms > here.ms + 2.9 for here, there in zip(near, far, strict=True))


def test_every_step_has_other_non_zeros_at_the_same_density():
    first, second = ((tensors[0] != 0) | (tensors[1] != 0) for tensors in map(POINT.tensors, (3, 4)))
    assert (first != second).any()
    for union in (first, second):
        assert union.mean() == pytest.approx(POINT.density, rel=0.3)


@pytest.mark.parametrize(
    "point", [POINT, Point(1 << 16, 0.5, 100.0, 1e-4), Point(1 << 16, 0.2, 0.1, 1e-4)], ids=str
)
def test_the_automatic_form_is_that_of_an_allreduce(point):
    reduce = Allreduce(LoopbackSummation(), network=point.network)
    for number in range(3):
        (union,) = replace(point, workers=1).tensors(number)
        form = reduce.sum({"gradient": union})["gradient"].form
    assert which_form.chosen_form(point) == form


@pytest.mark.system
@pytest.mark.usefixtures("forked_children")
def test_a_step_over_links_is_exact_and_no_quicker_than_they_are():
    points = [Point(5000, density, gbps=0.1, rtt=20e-3, workers=2) for density in (0.01, 0.1)]
    measured = list(over_links(points))
    assert [point for point, _ in measured] == points
    for _, forms in measured:
        assert [form.form for form in forms] == list(FORMS)
        assert all(form.wrong == 0 and form.ms >= 20 and form.codec_ms > 0 for form in forms)
        assert forms[1].ms >= 2 * 20, "compact values follow the header"


def test_the_map_has_a_square_for_each_point_and_marks_where_auto_is_slower():
    from matplotlib.figure import Figure

    fill = load(find("which_form")).plots[0].fill
    columns = ["gbps", "density", "fastest", "auto_over_fastest", "modelled"]
    points = [
        ("0.1", "0.01", "compact", 1.05, True),
        ("1.0", "0.01", "dense", 1.25, True),
        ("0.1", "0.2", "dense", 1.0, True),
        ("0.1", "0.2", "sketch", 3.0, False),
    ]
    figure = Figure()
    fill(figure, pd.DataFrame(points, columns=columns).assign(rtt_ms="5.0", elements="1024"))
    few, many = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["1,024 elements, 1%", "1,024 elements, 20%"]
    assert [len(axes.patches) for axes in figure.axes] == [2, 1]
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == ["1.25"]
    assert few.patches[0].get_facecolor() != few.patches[1].get_facecolor() == many.patches[0].get_facecolor()
    (circle,) = many.lines
    assert circle.get_color() not in (few.patches[0].get_facecolor()[:3], many.patches[0].get_facecolor()[:3])

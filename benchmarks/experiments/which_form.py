"""Which form is fastest, by rate, round trip, density and size"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from benchmarks import Experiment, Plot, Size, Value
from benchmarks.experiment import colour
from peelsum.allreduce import Allreduce, Summation
from peelsum.bench.allreduce import settings_of, wrong_elements
from peelsum.bench.point import Point
from peelsum.bench.which_form import (
    LANES,
    STEADY,
    STEPS,
    WINDOW,
    FormTime,
    chosen_form,
    predict_forms,
    simulate_forms,
)
from peelsum.topology import Star
from peelsum.transport.seats import plug_in

FORMS = ("dense", "compact", "sketch")
#: A map's colours.
_COLOURS = {"dense": "grey", "compact": "blue", "sketch": "orange"}
#: From which ratio of times on the automatic choice is marked.
_APART = 1.1


def measure(
    seed: int, level: str, gbps: float, rtt_ms: float, elements: int, density_each: tuple[float, ...]
) -> Iterator[dict[str, Value]]:
    """Yield a row for each density."""
    points = [Point(elements, density, gbps, rtt_ms / 1e3, workers=2, seed=seed) for density in density_each]
    in_virtual_time = ((point, simulate_forms(point)) for point in points)
    for point, forms in over_links(points) if level == "links" else in_virtual_time:
        ms = {form_time.form: form_time.ms or 0.0 for form_time in forms}
        fastest, auto = min(ms, key=lambda form: ms[form]), chosen_form(point)
        yield {
            "density": point.density,
            **{f"{form}_ms": took for form, took in ms.items()},
            "fastest": fastest,
            "auto": auto,
            "auto_over_fastest": ms[auto] / ms[fastest],
            **{f"{form_time.form}_predicted_ms": form_time.predicted_ms for form_time in forms},
            **{f"{form_time.form}_codec_ms": form_time.codec_ms for form_time in forms},
            "wrong": sum(form_time.wrong or 0 for form_time in forms),
        }


def over_links(points: Sequence[Point]) -> Iterator[tuple[Point, list[FormTime]]]:
    """Measure points with the same links and workers, one after the other, over one softswitch."""
    first = points[0]
    rate, delay_ms = 1e3 * first.gbps, 1e3 * first.rtt / 4
    # Workers' own links have no rate: without a limit of marks, their bursts would shrink the window.
    links = Star(
        first.workers, lanes=LANES, window=WINDOW, rate_mbit=rate, delay_ms=delay_ms, mark_from=WINDOW
    )
    with links as star, ThreadPoolExecutor(first.workers) as pool:
        seats = list(pool.map(lambda seat: plug_in(asdict(seat)), star.seats))
        try:
            for point in points:
                yield (
                    point,
                    [_measured(point, prediction, seats, pool) for prediction in predict_forms(point)],
                )
        finally:
            for seat in seats:
                seat.close()


def _measured(
    point: Point, expected: FormTime, seats: Sequence[Summation], pool: ThreadPoolExecutor
) -> FormTime:
    drawn = [point.tensors(step) for step in range(STEPS)]  # at first: then sums follow each other

    def work(seat: Summation) -> tuple[list[tuple[float, float]], int]:
        reduce = Allreduce(seat, **settings_of(expected.form), network=point.network, seed=point.seed)
        times = []
        for tensors in drawn:
            started = time.perf_counter()
            step = reduce.sum({"gradient": tensors[seat.worker_id]})
            times.append((time.perf_counter() - started, step.encode_s + step.decode_s))
        return times[STEADY:], wrong_elements(step["gradient"], drawn[-1])

    done = list(pool.map(work, seats))
    # Of each step, the slowest worker; of all, the fastest step: other load on the machine only adds.
    seconds, codec_s = min(max(workers) for workers in zip(*(times for times, _ in done), strict=True))
    wrong = sum(wrong for _, wrong in done)
    return FormTime(expected.form, expected.predicted_ms, 1e3 * seconds, 1e3 * codec_s, wrong)


def draw(figure: Any, points: Any) -> None:
    """Draw a map for each size and density that was simulated."""
    axes_of = ("elements", "density", "gbps", "rtt_ms")
    points = points.astype(dict.fromkeys(axes_of, float))
    simulated_points = points[points["modelled"]] if points["modelled"].any() else points
    sizes, densities, rates, trips = (sorted(simulated_points[name].unique()) for name in axes_of)
    grid = figure.subplots(len(sizes), len(densities), squeeze=False, sharex=True, sharey=True)
    for _, point in points[points["density"].isin(densities)].iterrows():
        axes = grid[sizes.index(point["elements"])][densities.index(point["density"])]
        x, y, form = (
            rates.index(point["gbps"]),
            trips.index(point["rtt_ms"]),
            colour(_COLOURS[point["fastest"]]),
        )
        if not point["modelled"]:
            axes.plot(x + 0.28, y + 0.27, "o", color=form, markeredgecolor=colour("paper"), markersize=6)
            continue
        axes.bar(x, 0.95, 0.95, y - 0.475, color=form)
        if (ratio := point["auto_over_fastest"]) > _APART:
            axes.text(x, y, f"{ratio:.3g}", ha="center", va="center", fontsize=7, color=colour("paper"))
    for row, size in zip(grid, sizes, strict=True):
        for axes, density in zip(row, densities, strict=True):
            axes.set_title(f"{size:,.0f} elements, {100 * density:g}%", fontsize=8)
            axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
            axes.set_yticks(range(len(trips)), [f"{trip:g}" for trip in trips])
            axes.tick_params(length=0)
            axes.grid(visible=False)
            axes.spines["bottom"].set_visible(False)
        row[0].set_ylabel("Round trip (ms)", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("Links (Gbit/s)", fontsize=8)
    for form, name in _COLOURS.items():
        grid[0][0].plot([], [], "s", color=colour(name), label=form)
    edge = {"color": colour("paper"), "markeredgecolor": colour("muted")}
    grid[0][0].plot([], [], "o", **edge, label="in a corner: measured over links")
    figure.legend(loc="outside lower center", ncols=4)


def counted(medians: Any) -> str:
    """Return how often each form is the fastest, of the points that were simulated."""
    fastest = medians.points[medians.points["modelled"]]["fastest"].value_counts()
    return f"""Of {fastest.sum()} points, compact values are fastest at {fastest["compact"]}, sketches, which
        save a round trip, at {fastest["sketch"]}, and dense values at {fastest["dense"]}"""


#: The grid of the map.
RATES, TRIPS_MS = (0.1, 1.0, 10.0, 100.0), (0.05, 0.2, 1.0, 5.0, 20.0)
FEW = {"gbps": (0.1, 10.0), "rtt_ms": (0.2, 5.0), "elements": 2**14, "density_each": ((0.01,),)}
LINKS = {"level": "links", "gbps": 0.1, "rtt_ms": 5.0, "elements": 2**16}
EXPERIMENT = Experiment(
    about="""
A steady step of two workers through one switch: the third or a later one, with non-zeros that are drawn again
in every step, uniformly, with the same density of the union. `gbps` is the rate of every link, `rtt_ms` the
time from a worker to the server and back without the packets' own. Allreduces are told both. Forms are forced
by `forms` and `values`.

`virtual` rows are modelled: one worker's words and processor time are measured in memory, and each exchange
is simulated packet by packet, in packets of 256 words of which at most 1,024 are under way. So at 20 ms no
worker sends more than 0.4 Gbit/s. Exchanges of five such windows or more are extended from the simulated
ones. Codec and network do not overlap. Of three steps, codecs are those of the fastest, words of the middle
one.

`links` rows are measured: two workers are threads of one process, and a softswitch paces and delays their
packets on loopback. On 2 cores it can do this for 0.1 Gbit/s and round trips of milliseconds; a step is the
fastest of three, of the slower worker. Workers send as fast as they can, and the switch's ports set no marks.

The map has a square for each point: its colour is the form that is fastest there, simulated. A number says
how many times as long `auto`'s form takes, where that is more than 1.1. A circle has the colour of the form
that was fastest as measured; a density that was only measured stands in the table.
""",
    measure=measure,
    columns={
        "density": "share of elements that are non-zero on some worker",
        **{f"{form}_ms": f"milliseconds of a step, {form}" for form in FORMS},
        "fastest": "the form with the shortest step",
        "auto": "the form that `auto` chooses by formula",
        "auto_over_fastest": "time of `auto`'s form over that of the fastest",
        **{f"{form}_predicted_ms": f"`{form}_ms` by formula" for form in FORMS},
        **{f"{form}_codec_ms": f"of `{form}_ms`, milliseconds in the codec" for form in FORMS},
        "wrong": "wrong elements of the last step, and wrong simulated sums",
    },
    modelled_columns=("auto", *(f"{form}_predicted_ms" for form in FORMS)),
    keys=("density",),
    defaults={"density_each": ((0.001, 0.01, 0.05, 0.2),)},
    sizes={
        "quick": Size([{**FEW, "level": "virtual"}, {**FEW, **LINKS, "elements": 2**14}], 1),
        "usual": Size(
            [
                {"level": "virtual", "gbps": RATES, "rtt_ms": TRIPS_MS, "elements": (2**16, 2**20, 2**24)},
                {**LINKS, "rtt_ms": (5.0, 20.0), "elements": (2**16, 2**20)},
                {**LINKS, "density_each": ((0.9,),)},
            ],
            1,
        ),
    },
    plots=[
        Plot(
            "map",
            x="gbps",
            y="fastest",
            fill=draw,
            finding=counted,
            setting="""A step of two workers. Squares: the fastest form, simulated with measured codec times.
                Figures: auto's time over its, above 1.1.""",
            height=6,
        )
    ],
    modelled={"level": ("virtual",)},
    timed_models=True,
    ranges={"gbps": (0.001, 1600), "rtt_ms": (0, 4000), "elements": (1, 2**26), "density_each": (0, 1)},
    choices={"level": ("virtual", "links")},
)

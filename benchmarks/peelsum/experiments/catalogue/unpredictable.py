"""Networks that change while training runs: fixed methods against the strategy that decides in every step."""

from __future__ import annotations

from peelsum.experiments import Column, Experiment, Plot, Size, Value

#: The methods with the ratio that each sends; the strategy chooses both.
FIXED = {
    "dense, ring": ("dense_ring", 1.0),
    "dense, switch": ("dense_switch", 1.0),
    "top 1%, all_gather": ("top_k_all_gather", 0.01),
    "top 1%, switch": ("top_k_switch", 0.01),
    "AR-Topk 1%, ring": ("ar_top_k_ring", 0.01),
    "AR-Topk 0.1%, switch": ("ar_top_k_switch", 0.001),
}
FLEXIBLE = "flexible"


def measure(
    seed: int, network: str, method: str, steps: int, elements: int, workers: int
) -> dict[str, Value]:
    """Compute the time of training steps by the cost model."""
    from peelsum.bench.methods.changing import Run, fixed, flexible

    def of(name: str) -> Run:
        way, ratio = FIXED[name]
        return fixed(network, way, ratio, steps=steps, elements=elements, workers=workers)  # type: ignore[arg-type]

    if method == FLEXIBLE:
        one = flexible(network, steps=steps, elements=elements, workers=workers, seed=seed)
    else:
        one = of(method)
    best = min(run.seconds / run.gain for run in map(of, FIXED))
    return {
        "step_ms": 1e3 * one.seconds / steps,
        "measuring_ms": 1e3 * one.measuring_s / steps,
        "gain": one.gain / steps,
        "ms_for_gain": 1e3 * one.seconds / one.gain,
        "over_best_fixed": one.seconds / one.gain / best,
        "changes": one.changes,
    }


def grid(steps: int, networks: tuple[str, ...]) -> list[dict[str, tuple[Value, ...]]]:
    """Return one part: all methods on these networks."""
    return [
        {
            "network": networks,
            "method": (*FIXED, FLEXIBLE),
            "steps": (steps,),
            "elements": (1_000_000,),
            "workers": (4,),
        }
    ]


EXPERIMENT = Experiment(
    name="unpredictable",
    title="Fixed against flexible communication on networks that change",
    about="""
Training steps of a million elements on four workers, all computed from the cost model of
`peelsum.flexible`; the strategy decides by the model's times with noise, and the words of its measurements
and its probes take their time. Methods over a process group and dense sums exchange a few words first, as in
the communication hook. Networks: 10 Gbit/s
(`steady_fast`), 100 Mbit/s (`steady_slow`), 10 Gbit/s that fall to 200 Mbit/s in the middle third
(`falling`), both in turn in ten parts (`alternating`), and 1 Gbit/s whose latency rises from 0.1 to 10 ms
half-way (`far`). A step computes for 5 ms. A step's gain is assumed: ratio\\*\\*0.2 for what selects, 1 for
dense sums.
""",
    measure=measure,
    columns={
        "step_ms": Column("milliseconds of a step", modelled=True),
        "measuring_ms": Column(
            "milliseconds of these that the words of measurements, and probes, take", modelled=True
        ),
        "gain": Column("assumed gain of a step", modelled=True),
        "ms_for_gain": Column("milliseconds for a gain of 1", modelled=True),
        "over_best_fixed": Column(
            "milliseconds for a gain of 1, over those of the best fixed method", modelled=True
        ),
        "changes": Column("how often the strategy chose another method or ratio", modelled=True),
    },
    sizes={
        "quick": Size(grid(200, ("steady_fast", "falling")), 3),
        "usual": Size(grid(600, ("steady_fast", "steady_slow", "falling", "alternating", "far")), 7),
        "full": Size(grid(3000, ("steady_fast", "steady_slow", "falling", "alternating", "far")), 15),
    },
    plots=[Plot("over_best_fixed", x="network", y="over_best_fixed", lines="method", log="y")],
    timed=False,
)

"""One level of switches against two, with slow links between them, and with a worker that is late."""

from __future__ import annotations

from peelsum.experiments import Column, Experiment, Plot, Size, Value


def measure(
    seed: int, levels: int, mbit: float | None, trunk: float, late_ms: float, workers: int, elements: int
) -> dict[str, Value]:
    """Sum over one switch, or over two racks and a spine."""
    from peelsum.bench.levels import Scene, run

    trunk_mbit = None if mbit is None else mbit * trunk
    found = run(Scene(levels, workers, elements, mbit, trunk_mbit, late_ms, seed=seed))
    return {
        "step_ms": found.step_ms,
        "switch_cpu_ms": found.switch_cpu_ms,
        "server_cpu_ms": found.server_cpu_ms,
        "wrong": found.wrong,
    }


def grid(elements: int, mbit: float, late_ms: tuple[float, ...]) -> list[dict[str, tuple[Value, ...]]]:
    """Return three grids.

    One has unlimited links with late workers; one has a level with a rate; one has two levels with rates on
    links and trunks.
    """
    same: dict[str, tuple[Value, ...]] = {"workers": (4,), "elements": (elements,)}
    return [
        {"levels": (1, 2), "mbit": (None,), "trunk": (1.0,), "late_ms": (0.0, *late_ms), **same},
        {"levels": (1,), "mbit": (mbit,), "trunk": (1.0,), "late_ms": (0.0,), **same},
        {"levels": (2,), "mbit": (mbit,), "trunk": (1.0, 0.5), "late_ms": (0.0,), **same},
    ]


EXPERIMENT = Experiment(
    name="levels",
    title="One level of switches against two",
    about="""
Four workers sum words over loopback UDP: below one switch, or in two racks of two below a spine. The server
is at the spine. Ports send at most `mbit` Mbit/s ("-": as fast as the machine), those between switches at
most `trunk` times that: with two workers a rack, 1 is an oversubscription of 2, and 0.5 of 4. The last
worker begins each sum `late_ms` milliseconds after the others; times count from then. Processor time is
that of the switch and server processes.
""",
    measure=measure,
    columns={
        "step_ms": Column("milliseconds from the last worker's start until it has the sum, median of ten"),
        "switch_cpu_ms": Column("processor time of all switches per sum, ms"),
        "server_cpu_ms": Column("processor time of the server per sum, ms"),
        "wrong": Column("words that differ from an independent sum"),
    },
    sizes={
        "quick": Size(
            [
                {
                    "levels": (1, 2),
                    "mbit": (None,),
                    "trunk": (1.0,),
                    "late_ms": (0.0,),
                    "workers": (4,),
                    "elements": (2**18,),
                }
            ],
            2,
        ),
        "usual": Size(grid(2**18, 100.0, (50.0,)), 3),
        "full": Size(grid(2**20, 400.0, (10.0, 50.0, 200.0)), 7),
    },
    plots=[Plot("step_ms", x="levels", y="step_ms", lines="late_ms", where={"mbit": None})],
)

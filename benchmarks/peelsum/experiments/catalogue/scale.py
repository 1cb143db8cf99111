"""Time of a sum and memory of a switch against the number of workers: simulated, and by formula."""

from __future__ import annotations

from peelsum.experiments import Column, Experiment, Plot, Size, Value

WAYS = ("peelsum", "switchml", "ring", "binomial", "sharded_server")
#: Bytes of registers that a slot has beside its lanes: owner, bitmap, flags and clock of a word each.
SLOT_STATE_BYTES = 16


def measure(
    seed: int, level: str, workers: int, way: str, elements: int, gbps: float, loss: float
) -> dict[str, Value]:
    """Sum one tensor of dense words in virtual time, or compute what a formula says."""
    from peelsum.bench.simulation.rows import measured, scenario_of
    from peelsum.simulation.cost_model import estimate

    scenario = scenario_of(workers, elements=elements, gbps=gbps, loss=loss, one_switch=way == "switchml")
    scenario = scenario.model_copy(update={"seed": seed})
    slots = slots_of(way, min(scenario.jobs[0].window, scenario.slots // 2))
    memory = {
        "switches": 0 if not slots else 1 + (scenario.network.racks > 1) * scenario.network.racks,
        "slot_memory_kib": slots * (4 * scenario.lanes + SLOT_STATE_BYTES) / 1024,
    }
    if level == "formula":
        seconds = estimate(scenario, way)
        return {"ms": 1e3 * seconds, "gbit_s": 32 * elements / seconds / 1e9, **memory, "wrong": None}
    row = measured(scenario, way)
    return {"ms": 1e3 * row.seconds, "gbit_s": row.goodput_gbps, **memory, "wrong": row.wrong}


def slots_of(way: str, window: int) -> int:
    """Return the slots of a switch that a job's window needs, shadow copies included."""
    # peelsum leaves a window of slots free for chunks that stragglers still need; SwitchML has two copies.
    return 2 * window if way in ("peelsum", "switchml") else 0


def part(
    level: str, workers: tuple[int, ...], ways: tuple[str, ...], losses: tuple[float, ...] = (0.0,)
) -> dict[str, tuple[Value, ...]]:
    """Return one part of the grid."""
    fixed: dict[str, tuple[Value, ...]] = {"elements": (2**20,), "gbps": (100.0,), "loss": losses}
    return {"level": (level,), "workers": workers, "way": ways, **fixed}


#: The model of SwitchML has one switch of 32 ports.
FAR = tuple(way for way in WAYS if way != "switchml")
EXPERIMENT = Experiment(
    name="scale",
    title="Four to a thousand workers",
    about="""
Workers with links of 100 Gbit/s and 1 us sum 4 MiB of dense words, in racks of 32 below one spine. Up to 64
workers every packet is simulated: the real endpoints, servers and switch program of peelsum in virtual time,
and models of its rivals on the same links. Beyond, formulas that were fitted to 4 to 32 workers give the
times. Hosts take no time for a packet. Timers are those for links of microseconds. The reference page of the
simulator says what the rivals' models leave out.

A switch's memory is that of one job's slots in each switch; the time of a sum does not depend on it as long
as the window fits.
""",
    measure=measure,
    columns={
        "ms": Column("milliseconds of a sum, of the slowest worker", modelled=True),
        "gbit_s": Column("gigabits of a worker's words summed per second", modelled=True),
        "switches": Column("switches that add", modelled=True),
        "slot_memory_kib": Column("KiB of registers for the job's slots, in each switch", modelled=True),
        "wrong": Column("wrong sums"),
    },
    sizes={
        "quick": Size([part("packet", (4, 16), WAYS, (0.0, 0.001)), part("formula", (16, 1024), FAR)], 1),
        "usual": Size(
            [
                part("packet", (4, 8, 16, 32), WAYS, (0.0, 0.001)),
                part("packet", (64,), FAR, (0.0, 0.001)),
                part("formula", (4, 8, 16, 32, 64, 128, 256, 512, 1024), FAR),
            ],
            3,
        ),
    },
    plots=[
        Plot("packet", x="workers", y="ms", lines="way", where={"level": "packet", "loss": 0.0}, log="xy"),
        Plot("loss", x="workers", y="ms", lines="way", where={"level": "packet", "loss": 0.001}, log="xy"),
        Plot("formula", x="workers", y="ms", lines="way", where={"level": "formula"}, log="xy"),
    ],
    timed=False,
)

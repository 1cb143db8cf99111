"""Four to a thousand workers.

Workers with links of 100 Gbit/s and 1 us sum 4 MiB of dense words, in racks of 32 below one spine. Up to 64
workers every packet is simulated: the real endpoints, servers and switch program of peelsum in virtual time,
and models of its rivals on the same links. Beyond, formulas that were fitted to 4 to 32 workers give the
times. Hosts take no time for a packet. Timers are those for links of microseconds. The reference page of the
simulator says what the rivals' models leave out.

A switch's memory is that of one job's slots in each switch; the time of a sum does not depend on it as long
as the window fits.
"""

from __future__ import annotations

from benchmarks import Column, Experiment, Plot, Size, Value
from benchmarks.rivals.cost_model import estimate
from benchmarks.rivals.sparse_sums import figures, measured, scenario_of

WAYS = ("peelsum", "switchml", "ring", "binomial", "sharded_server")
#: Bytes of registers that a slot has beside its lanes: owner, bitmap, flags and clock of a word each.
SLOT_STATE_BYTES = 16


def measure(
    seed: int, level: str, workers: int, way: str, elements: int, gbps: float, loss: float
) -> dict[str, Value]:
    """Sum one tensor of dense words in virtual time, or compute what a formula says."""
    scenario = scenario_of(workers, elements=elements, gbps=gbps, loss=loss, one_switch=way == "switchml")
    scenario = scenario.model_copy(update={"seed": seed})
    window = min(scenario.jobs[0].window, scenario.slots // 2)
    # peelsum leaves a window of slots free for chunks that stragglers still need; SwitchML has two copies.
    slots = 2 * window if way in ("peelsum", "switchml") else 0
    formula = level == "formula"
    found = figures(scenario, estimate(scenario, way)) if formula else measured(scenario, way)
    return {
        "ms": 1e3 * found["seconds"],
        "gbit_s": found["goodput_gbps"],
        "switches": 0 if not slots else 1 + (scenario.network.racks > 1) * scenario.network.racks,
        "slot_memory_kib": slots * (4 * scenario.lanes + SLOT_STATE_BYTES) / 1024,
        "wrong": None if formula else found["wrong"],
    }


#: The model of SwitchML has one switch of 32 ports.
FAR = tuple(way for way in WAYS if way != "switchml")
EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "ms": Column("milliseconds of a sum, of the slowest worker", modelled=True),
        "gbit_s": Column("gigabits of a worker's words summed per second", modelled=True),
        "switches": Column("switches that add", modelled=True),
        "slot_memory_kib": Column("KiB of registers for the job's slots, in each switch", modelled=True),
        "wrong": Column("wrong sums"),
    },
    defaults={"elements": 2**20, "gbps": 100.0, "loss": 0.0},
    sizes={
        "quick": Size(
            [
                {"level": "packet", "workers": (4, 16), "way": WAYS, "loss": (0.0, 0.001)},
                {"level": "formula", "workers": (16, 1024), "way": FAR},
            ],
            1,
        ),
        "usual": Size(
            [
                {"level": "packet", "workers": (4, 8, 16, 32), "way": WAYS, "loss": (0.0, 0.001)},
                {"level": "packet", "workers": 64, "way": FAR, "loss": (0.0, 0.001)},
                {"level": "formula", "workers": (4, 8, 16, 32, 64, 128, 256, 512, 1024), "way": FAR},
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

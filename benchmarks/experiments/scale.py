"""Four to a thousand workers.

Workers with links of 100 Gbit/s and 1 us sum 4 MiB of dense words, in racks of 32 below one spine. Up to 64
workers every packet is simulated: the real endpoints, servers and switch program of peelsum in virtual time,
SwitchML's program in the same softswitch, and models of collectives on the same links. Beyond, formulas that
were fitted to 4 to 32 workers give the times. Hosts take no time for a packet. Timers are those for links of
microseconds. The reference page of the simulator says what is left out of the rivals.

A switch's memory is that of one job's slots in each switch; the time of a sum does not depend on it as long
as the window fits.
"""

from __future__ import annotations

from typing import Any

from benchmarks import SERIES, Experiment, Plot, Size, Value
from benchmarks.rivals.cost_model import estimate
from benchmarks.rivals.sparse_sums import goodput_gbps, measured, scenario_of

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
    result = {"seconds": estimate(scenario, way)} if formula else measured(scenario, way)
    return {
        "ms": 1e3 * result["seconds"],
        "gbit_s": goodput_gbps(scenario, result["seconds"]),
        "switches": 0 if not slots else 1 + (scenario.network.racks > 1) * scenario.network.racks,
        "slot_memory_kib": slots * (4 * scenario.lanes + SLOT_STATE_BYTES) / 1024,
        "wrong": None if formula else result["wrong"],
    }


#: SwitchML's program is for one switch, and 32 workers.
FAR = tuple(way for way in WAYS if way != "switchml")
ALONG: dict[str, Any] = {
    "x": "workers",
    "y": "ms",
    "lines": "way",
    "names": SERIES,
    "log": "xy",
    "setting": "4 MiB of words, links of 100 Gbit/s and 1 us, racks of 32. Simulated packet by packet, or "
    "by formulas fitted to 4 to 32 workers; collectives are models.",
    "xlabel": "Workers",
    "ylabel": "Time of a sum (ms)",
}


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "ms": "milliseconds of a sum, of the slowest worker",
        "gbit_s": "gigabits of a worker's words summed per second",
        "switches": "switches that add",
        "slot_memory_kib": "KiB of registers for the job's slots, in each switch",
        "wrong": "wrong sums",
    },
    modelled_columns=("ms", "gbit_s", "switches", "slot_memory_kib"),
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
        Plot(
            "packet",
            where={"level": "packet", "loss": 0.0},
            finding="""A sum takes {peelsum@4:.2f} ms for 4 workers and {peelsum@64:.2f} for 64 with peelsum,
                {ring@4:.2f} and {ring@64:.2f} with NCCL's ring""",
            **ALONG,
        ),
        Plot(
            "loss",
            where={"level": "packet", "loss": 0.001},
            finding="""With 0.1% of packets lost, a sum of 16 workers takes {peelsum@16:.2f} ms with peelsum
                and {switchml@16:.2f} with SwitchML; of 64, {peelsum@64:.2f} with peelsum and {ring@64:.2f}
                with NCCL's ring""",
            **ALONG,
        ),
        Plot(
            "formula",
            where={"level": "formula"},
            finding="""By formula, 1,024 workers take {peelsum@1024:.2f} ms with peelsum and {ring@1024:.1f}
                ms with NCCL's ring""",
            **ALONG,
        ),
    ],
    timed=False,
)

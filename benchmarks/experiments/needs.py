"""What in-network aggregation needs of a switch.

For each build of the switch program: what the compiler says that it takes, and what its lanes mean for a
link of `gbps` Gbit/s whose exchange takes `rtt_us` microseconds. Reports are those of `switch/artifacts`,
by p4c's Tofino back end; none of these builds has run on a Tofino. The softswitch's rate is measured in
memory, with four workers.
"""

from __future__ import annotations

import re

from benchmarks import Experiment, Plot, Published, Size, Value
from peelsum.pipelines.artifacts import ARTIFACTS
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

#: Compilers' reports, and the pipelines of the softswitch by their lanes.
REPORTS = {"tofino, 32 lanes": "tofino_32.txt", "tofino2, 64 lanes": "tofino2_64.txt"}
SOFTSWITCH = tuple(f"softswitch, {lanes} lanes" for lanes in (32, 64, 128, 256))


def measure(seed: int, build: str, gbps: float, rtt_us: float) -> dict[str, Value]:
    """Read one build's report, or measure the softswitch; compute what the lanes mean for a link."""
    lanes = int(build.split()[1])
    # Beside the frame, a link carries preamble, check sequence and gap.
    frame = FRAME_HEADER_BYTES + packet_bytes(lanes) + 24
    packets_per_s = gbps * 1e9 / (8 * frame)
    slots = packets_per_s * rtt_us * 1e-6
    return {
        "lanes": lanes,
        **(read(REPORTS[build]) if build in REPORTS else dict.fromkeys(("stages", "salus", "sram_blocks"))),
        "measured_gbit_s": None if build in REPORTS else rate(lanes),
        "goodput": 4 * lanes / frame,
        "mpackets_per_s": packets_per_s / 1e6,
        "slots_a_job": slots,
        "slot_memory_kib": slots * (4 * lanes + 16) / 1024,
    }


def read(name: str) -> dict[str, Value]:
    """Return the figures of a compiler's report."""
    text = (ARTIFACTS / name).read_text()
    stages = re.search(r": (\d+) of \d+ stages", text)
    sums = next(line.split()[1:] for line in text.splitlines() if line.split()[:1] == ["sum"])
    assert stages is not None
    return {"stages": int(stages[1]), "salus": int(sums[2]), "sram_blocks": int(sums[3])}


def rate(lanes: int) -> float:
    """Return the gigabits of words per second that the softswitch sums in memory, on one core."""
    from peelsum.bench.switch.rows import measure_switch

    packets_per_s: float = measure_switch("memory", lanes, 4, 0.5)["packets_per_s"]
    return 32 * lanes * packets_per_s / 1e9


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "lanes": "words of a packet",
        "stages": "pipeline stages, by the compiler's report",
        "salus": "stateful ALUs, by the compiler's report",
        "sram_blocks": "SRAM blocks, by the compiler's report",
        "measured_gbit_s": "gigabits of words that the softswitch takes per second, in memory",
        "goodput": "share of a link's bits that are words",
        "mpackets_per_s": "million packets per second that fill the link",
        "slots_a_job": "slots that a job holds at the link's rate",
        "slot_memory_kib": "KiB of registers in these slots",
    },
    modelled_columns=("goodput", "mpackets_per_s", "slots_a_job", "slot_memory_kib"),
    defaults={"build": (*REPORTS, *SOFTSWITCH), "gbps": 100.0, "rtt_us": 10.0},
    sizes={"quick": Size([{"build": (*REPORTS, "softswitch, 256 lanes")}], 1), "usual": Size([{}], 5)},
    plots=[
        Plot(
            "goodput",
            x="build",
            y="goodput",
            kind="bars",
            percent="y",
            finding="""Packets of 32 lanes, all that a Tofino 1 sums, fill {@tofino, 32 lanes:.0%} of a link
                with words; of 256 lanes, {@softswitch, 256 lanes:.0%}""",
            setting="""Bits of words over all bits on Ethernet: headers, preamble, check sequence and gap.
                Computed.""",
            ylabel="Link's bits that are words (%)",
            names={
                "tofino, 32 lanes": "Tofino 1, 32 lanes",
                "tofino2, 64 lanes": "Tofino 2, 64 lanes",
                **{build: build for build in SOFTSWITCH},
            },
            height=2.4,
        )
    ],
    published=[
        Published(
            "values of a packet in one pass, P4_14 for Tofino",
            31,
            "ATP's published program, in-ATP/ATP ddca27f",
            "lanes",
            {"build": "tofino, 32 lanes"},
        )
    ],
)

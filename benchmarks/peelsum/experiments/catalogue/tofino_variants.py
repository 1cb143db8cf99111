"""Stages that the program would need on a Tofino with more lanes.

With `pairs`, a stateful ALU holds two lanes and returns one of them; a packet that leaves would need a second
pass for the other. Needs p4c-barefoot and bfas on PATH, and about a minute for each variant.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from peelsum.experiments import Column, Experiment, Size, Value
from peelsum.pipelines.artifacts import P4_SOURCES, PipelineError
from peelsum.pipelines.tofino import ARCHITECTURES, ASSEMBLER, COMPILER
from peelsum.wire.p4 import each_lane_p4

PAIR = """\
struct sums_t {
    bit<32> even;
    bit<32> odd;
}

#define CHANGE(name, change_even, change_odd, answer)                       \\
    RegisterAction<sums_t, slot_t, bit<32>>(sums) name = {                  \\
        void apply(inout sums_t value, out bit<32> sum) {                   \\
            value.even = change_even;                                       \\
            value.odd = change_odd;                                         \\
            sum = answer;                                                   \\
        }                                                                   \\
    }

control Lane(in lane_op_t op, in bit<32> slot_index, inout bit<32> even, inout bit<32> odd) {
    Register<sums_t, slot_t>(SLOTS) sums;

    CHANGE(set_sums, even, odd, value.even);
    CHANGE(add_to_sums, value.even + even, value.odd + odd, value.even);
    CHANGE(or_into_sums, value.even | even, value.odd | odd, value.even);
    CHANGE(read_odd, value.even, value.odd, value.odd);

    action set() { even = set_sums.execute((slot_t)slot_index); }
    action add() { even = add_to_sums.execute((slot_t)slot_index); }
    action bitwise_or() { even = or_into_sums.execute((slot_t)slot_index); }
    action read() { odd = read_odd.execute((slot_t)slot_index); }

    table operations {
        key = { op : exact @name("op"); }
        actions = { set; add; bitwise_or; read; @defaultonly NoAction; }
        const entries = {
            LANES_SET  : set();
            LANES_ADD  : add();
            LANES_OR   : bitwise_or();
            LANES_READ : read();
        }
        const default_action = NoAction();
        size = 4;
    }

    apply {
        operations.apply();
    }
}
"""


def compile_variant(device: str, lanes: int, *, pairs: bool) -> int:
    """Return the stages of the program. Raises PipelineError if the compiler is missing."""
    for tool in (COMPILER, ASSEMBLER):
        if shutil.which(tool) is None:
            raise PipelineError(f"{tool}: not found on PATH; build p4c with its Tofino back end")
    with tempfile.TemporaryDirectory() as folder:
        p4 = Path(shutil.copytree(P4_SOURCES, Path(folder) / "p4"))
        return stages(device, lanes, pairs=pairs, p4=p4)


def pairs_p4(lanes: int) -> str:
    """Return the control `Lanes` with one `Lane` for every two lanes."""
    pairs = [(f"lane_{i}", f"lanes.v{2 * i}, lanes.v{2 * i + 1}") for i in range(lanes // 2)]
    return "\n".join(
        [
            "control Lanes(in lane_op_t op, in bit<32> slot_index, inout lanes_h lanes) {",
            *(f"    Lane() {lane};" for lane, _ in pairs),
            "    apply {",
            *(f"        {lane}.apply(op, slot_index, {both});" for lane, both in pairs),
            "    }",
            "}",
            "",
        ]
    )


def stages(device: str, lanes: int, *, pairs: bool, p4: Path) -> int:
    """Return the number of stages that the program needs; `p4` is a copy of the sources, which is changed."""
    folder = p4 / "generated" / "variant"
    folder.mkdir(exist_ok=True)
    (folder / "each_lane.p4").write_text(each_lane_p4(lanes))
    if pairs:
        (p4 / "tofino" / "lane.p4").write_text(PAIR)
        (p4 / "tofino" / "lanes.p4").write_text(pairs_p4(lanes))
    out = p4 / "out"
    target = ["--std", "p4-16", "--target", device, "--arch", ARCHITECTURES[device]]
    told = ["-g", "--verbose", "-Ttable_summary:1", "-Igenerated/variant", "-o", str(out)]
    command = [COMPILER, *target, *told, "tofino/peelsum.p4"]
    subprocess.run(command, cwd=p4, check=True, capture_output=True, text=True)
    summary = (out / "pipe" / "logs" / "table_summary.log").read_text()
    shutil.rmtree(out)
    return int(re.findall(r"Number of stages in table allocation: (\d+)", summary)[-1])


def measure(seed: int, device: str, lanes: int, pairs: bool) -> dict[str, Value]:
    """Compile one variant."""
    return {"stages": compile_variant(device, lanes, pairs=pairs)}


EXPERIMENT = Experiment(
    measure=measure,
    columns={"stages": Column("pipeline stages that the program needs")},
    sizes={
        "usual": Size(
            [
                {"device": ("tofino",), "lanes": (32, 36), "pairs": (False,)},
                {"device": ("tofino",), "lanes": (56, 64), "pairs": (True,)},
            ],
            1,
        )
    },
    ranges={"lanes": (2, 1024)},
    choices={"device": ("tofino", "tofino2")},
    timed=False,
)

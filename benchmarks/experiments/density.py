"""Aggregation throughput against density.

Four workers sum one float32 tensor over links of `mbit` Mbit/s. `density` is the share of elements that
are non-zero on some worker, anywhere (`uniform`), or the share of rows of 64 that are (`rows`, as of
embeddings). Each worker holds half of them, and its own. All ways are compared with the dense sum
through the switch.

`emulated`: processes, and the softswitch with ports of this rate; ours only. The dense sum is measured
over the same star for every row, so that other programs disturb both alike.

`simulated`: packet by packet in virtual time, with links of this rate and 50 us (1 us from 1 Gbit/s on).
The codec's processor time of one worker is added; `network_speedup` is without it and depends on nothing of
the machine. Ours are real endpoints and the compiled switch program: the exchanges of a sum that was done
in memory are simulated with as many words. `lhc` is the layout of LHC's program: batches of 1024 lanes and
four bits of index for each element. `lhc_best` is what its paper allows at best: one bit for each element,
or the Bloom filter with the fewest words by formula, and the best of batches of 32 to 1024; filling and
testing the filter takes no time. Small batches have few words and take long to encode, so that `speedup` is
not its best. Both have the smallest table that recovers everything, which a run knows only afterwards, in
one exchange. `lhc_fastest` is the table, of many sizes and batches, that takes the least time at the rate,
codec included; what a small one leaves over is a second exchange. OmniReduce (Fei et al., SIGCOMM'21,
algorithm 2) is a P4 program with the switch as aggregator: blocks of 256 elements, and of 16, 64 and 256
streams the number that is fastest; several blocks in a packet (fusion) are left out. SwitchML and ATP are P4
programs that send all elements, at 100 Gbit/s alone. The ring is of dense words.
"""

from __future__ import annotations

from typing import Any

from benchmarks import SERIES, Experiment, Plot, Size, Value
from peelsum.bench.allreduce import Case, measure_cases
from peelsum.topology import Star


def measure(
    seed: int, density: float, way: str, network: str, support: str, elements: int, mbit: float, workers: int
) -> dict[str, Value]:
    """Sum one tensor over a star of processes, or simulate it, and a dense one in the same way."""
    if network == "simulated":
        from benchmarks.rivals.sparse_sums import Tensors, sparse_sum

        tensors = Tensors(elements, density, support, workers, seed)  # type: ignore[arg-type]
        base = sparse_sum("dense", tensors, mbit / 1e3)
        row = base if way == "dense" else sparse_sum(way, tensors, mbit / 1e3)  # type: ignore[arg-type]
        seconds, base_s = (each.network_s + each.codec_s for each in (row, base))
        network_speedup, codec_s = base.network_s / row.network_s, row.codec_s
        sent, wrong = row.words / base.words, row.wrong + base.wrong
    else:
        cases = [Case(elements, 1.0, "dense", seed), Case(elements, density, way, seed)]  # type: ignore[arg-type]
        dense, sparse = measure_cases(cases, Star(workers, rate_mbit=mbit), iterations=3, warmups=1)
        seconds, base_s = (each["time_us"] / 1e6 for each in (sparse, dense))
        network_speedup = dense["network_us"] / sparse["network_us"]
        codec_s = (sparse["encode_us"] + sparse["decode_us"]) / 1e6
        sent, wrong = sparse["wire_bytes"] / dense["wire_bytes"], sparse["wrong"] + dense["wrong"]
    return {
        "speedup": base_s / seconds,
        "network_speedup": network_speedup,
        "time_ms": seconds * 1e3,
        "throughput_gbit_s": 32 * elements / seconds / 1e9,
        "bytes_over_dense": sent,
        "codec_ms": codec_s * 1e3,
        "wrong": wrong,
    }


OURS = ("compact", "sketch")
SPARSE = (*OURS, "omnireduce", "lhc", "lhc_best")
SIMULATED: dict[str, Value] = {"network": "simulated"}
DENSITIES = (0.001, 0.01, 0.05, 0.2, 0.5)
EMULATED = {"way": OURS, "network": "emulated"}
ROWS = {**SIMULATED, "way": SPARSE, "support": "rows"}
#: Dense words and a ring's do not depend on the density.
DENSE: dict[str, Any] = {**SIMULATED, "density": 1.0, "way": ("dense", "ring")}
PEERS: dict[str, Any] = {**DENSE, "way": ("switchml", "atp"), "mbit": 100_000.0}
#: Links at which the codec's time matters; figures of slower ones are without it.
RATES = {"mbit": (1000.0, 10_000.0, 100_000.0)}
FAST: dict[str, Any] = {"way": (*OURS, "omnireduce", "lhc_fastest"), **RATES}
ON_LINKS = "Simulated packet by packet: four workers sum 4 MiB of float32 over links"
ALONG: dict[str, Any] = {
    "x": "density",
    "lines": "way",
    "names": SERIES,
    "log": "xy",
    "percent": "x",
    "xlabel": "Elements that are not zero on some worker (%)",
}


def fastest_at_1(medians: Any) -> str:
    """Return the finding at 1 Gbit/s, if compact sums are the fastest at every density."""
    rivals = [medians.of(way) for way in ("sketch", "omnireduce", "lhc_fastest")]
    if not all(ours <= min(others) for ours, *others in zip(medians.of("compact"), *rivals, strict=True)):
        return ""
    return """At 1 Gbit/s compact sums are the fastest at every density: {compact@0.05:.1f} ms at 5%, where
        LHC takes {lhc_fastest@0.05:.1f} ms and NCCL's ring {ring@1.0:.0f} ms"""


def before_ring(medians: Any) -> str:
    """Return the finding at 10 Gbit/s, if compact sums beat the ring at every density."""
    if max(medians.of("compact")) >= medians["ring@1.0"]:
        return ""
    return """At 10 Gbit/s compact sums are faster than NCCL's ring even at 50%, {compact@0.5:.1f} against
        {ring@1.0:.1f} ms; at 5% sketches take {sketch@0.05:.1f} ms, LHC {lhc_fastest@0.05:.1f} ms"""


def after_ring(medians: Any) -> str:
    """Return the finding at 100 Gbit/s, if no sparse sum beats the ring."""
    if min(medians.of("compact")) <= medians["ring@1.0"]:
        return ""
    return """At 100 Gbit/s NCCL's ring is the fastest, with {ring@1.0:.2f} ms: the codec takes longer than
        the bytes that it saves; at 5% compact sums take {compact@0.05:.1f} ms, LHC {lhc_fastest@0.05:.1f}
        ms"""


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "speedup": "times faster than the dense sum through the switch",
        "network_speedup": "the same without the time of the codec",
        "time_ms": "milliseconds of a sum, of the slowest worker",
        "throughput_gbit_s": "gigabits of dense float32 summed per second and worker",
        "bytes_over_dense": "bytes that a worker sends, over those of the dense sum",
        "codec_ms": "milliseconds of encoding and decoding; `simulated`: of processor time",
        "wrong": "elements that differ from an independent sum",
    },
    defaults={**SIMULATED, "way": SPARSE, "support": "uniform", "workers": 4},
    sizes={
        "quick": Size(
            [
                {"density": 0.05, **part, "elements": 2**18, "mbit": 100.0}
                for part in (EMULATED, SIMULATED, ROWS, DENSE)
            ],
            2,
        ),
        "usual": Size(
            [
                {"elements": 2**20, "mbit": 200.0, **part}
                for part in (
                    {"density": DENSITIES, **EMULATED},
                    {"density": DENSITIES},
                    {"density": DENSITIES[::2], **ROWS},
                    DENSE,
                    {"density": DENSITIES, **FAST},
                    {**DENSE, **RATES},
                    PEERS,
                )
            ],
            1,
        ),
        "full": Size(
            [
                {"density": DENSITIES, "elements": 2**22, "mbit": rates, **part}
                for part, rates in (
                    (EMULATED, (200.0, 1000.0)),
                    *((part, (200.0, 1000.0, 100_000.0)) for part in (SIMULATED, ROWS, DENSE)),
                )
            ],
            7,
        ),
    },
    plots=[
        Plot(
            "speedup",
            y="network_speedup",
            where=SIMULATED | {"support": "uniform", "mbit": 200.0},
            finding="""At 5% non-zeros the network carries compact sums {compact@0.05:.1f} times as fast as
                dense ones, LHC's {lhc@0.05:.1f} times; at 0.1%, {compact@0.001:.0f} times and at LHC's best
                {lhc_best@0.001:.0f}""",
            setting=f"{ON_LINKS} of 200 Mbit/s, with non-zeros anywhere. Time on the network alone.",
            ylabel="Speed-up over a dense sum in the switch",
            flat=("dense", "ring"),
            **ALONG,
        ),
        Plot(
            "speedup_rows",
            y="network_speedup",
            where=SIMULATED | {"support": "rows"},
            finding="""Where 5% of the rows are not zero, compact sums are {compact@0.05:.0f} times as fast as
                dense ones, sketches {sketch@0.05:.0f} times, LHC's {lhc@0.05:.1f} and OmniReduce
                {omnireduce@0.05:.1f} times""",
            setting=f"{ON_LINKS} of 200 Mbit/s, with rows of 64 non-zeros. Time on the network alone.",
            ylabel="Speed-up over a dense sum in the switch",
            **ALONG,
        ),
        *(
            Plot(
                f"time_{mbit / 1000:.0f}",
                y="time_ms",
                where=SIMULATED | {"mbit": mbit},
                finding=finding,
                setting=f"{ON_LINKS} of {mbit / 1000:.0f} Gbit/s. Measured codec time is added.",
                ylabel="Time of a sum (ms)",
                flat=("dense", "ring", "switchml", "atp"),
                **ALONG,
            )
            for mbit, finding in zip(RATES["mbit"], (fastest_at_1, before_ring, after_ring), strict=True)
        ),
        Plot(
            "speedup_emulated",
            y="speedup",
            where={"network": "emulated"},
            finding="""Between processes, compact sums are {compact@0.001:.0f} times as fast as dense ones at
                0.1% and {compact@0.5:.1f} times at 50%, sketches {sketch@0.001:.0f} and {sketch@0.5:.1f}
                times""",
            setting=(
                "Four worker processes and a softswitch with ports of 200 Mbit/s, codec included. Measured."
            ),
            ylabel="Speed-up over a dense sum in the switch",
            reference=(1, "dense sum in the switch"),
            **ALONG,
        ),
    ],
    modelled={"network": ("simulated",)},
    timed_models=True,
)

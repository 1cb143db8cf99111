"""Rate and latency of a switch: the softswitch and BMv2, in memory and on ports, by lanes and workers.

One compiled pipeline in the softswitch, with ports in memory, over UDP, and on virtual Ethernet pairs by
AF_XDP and AF_PACKET, and in BMv2 on such pairs. They need root, and BMv2 `simple_switch_grpc` on PATH; where
one is missing, every row says so, and there are no ratios. `seconds` is the duration of each row's rate
measurement, and of its latency measurement. The first sums of every run are compared with the sums of what
was sent.
"""

from __future__ import annotations

from typing import Any

from benchmarks import Experiment, Plot, Series, Size
from peelsum.bench.switch.rows import measure_switches
from peelsum.wire import COMPILED_LANES, MAX_WORKERS


def measure(seed: int, lanes: int, workers: int, seconds: float) -> Any:
    """Measure every switch."""
    return measure_switches(lanes, workers, seconds)


#: How rows name BMv2 and its ports; those before 2026-11-26 said "veth".
BMV2 = ("bmv2, packet", "bmv2, veth")
RATES: dict[str, Any] = {
    "y": "packets_per_s",
    "lines": "target ports",
    "log": "xy",
    "ylabel": "Contributions per second, of complete sums",
    "names": {
        "softswitch, memory": Series("softswitch, in memory", "teal", ours=True),
        "softswitch, udp": Series("softswitch, UDP", "blue", ours=True),
        "softswitch, xdp": Series("softswitch, AF_XDP on veth", "green", ours=True),
        "softswitch, packet": Series("softswitch, AF_PACKET on veth", "purple", ours=True),
        **dict.fromkeys(BMV2, Series("BMv2, veth", "orange")),
    },
}


def by_udp(medians: Any) -> str:
    """Return the least rates over ports, and how many times BMv2's the softswitch's are."""
    (bmv2,) = (medians.of(name) for name in BMV2 if name in medians.by_series)
    ours = medians.of("softswitch, udp")
    ratios = [rate / slower for rate, slower in zip(ours, bmv2, strict=True)]
    return f"""By UDP the softswitch takes {min(ours) / 1e6:.1f} million contributions a second or more,
        {min(ratios):.0f} to {max(ratios):.0f} times as many as BMv2 from virtual Ethernet"""


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "target": "the switch: `softswitch` or `bmv2`",
        "ports": "what its ports are: `memory`, `udp`, or on veth `xdp` and `packet`",
        "packets_per_s": "contributions per second that went into complete sums",
        "packets_per_cpu_s": "the same per second of the switch process's processor time",
        "latency_p50_us": "median time from a chunk's last contribution in to its sum out",
        "latency_p99_us": "99th percentile of the same time",
        "slots_timed": "chunks whose latency was measured, one at a time",
        "bmv2": "`measured`, or the reason why BMv2 was not",
        "rate_to_bmv2": "`packets_per_s` over BMv2's with as many lanes and workers",
        "latency_to_bmv2": "`latency_p50_us` over BMv2's",
        "first_packet_cold_s": "seconds from import to the first packet's output, without compiled code",
        "first_packet_cached_s": "the same with compiled code on disk",
        "lost_chunks": "chunks that the load gave up after a silence",
    },
    keys=("target", "ports"),
    sizes={
        "quick": Size([{"lanes": 32, "workers": 2, "seconds": 0.1}], 1),
        "usual": Size([{"lanes": (32, 64, 128, 256), "workers": 4, "seconds": 3.0}], 1),
    },
    plots=[
        Plot(
            "by_lanes",
            x="lanes",
            where={"workers": 4},
            finding=by_udp,
            setting="Four workers, one process that plays all hosts. Measured.",
            xlabel="Lanes of a packet",
            **RATES,
        ),
        Plot(
            "by_workers",
            x="workers",
            where={"lanes": 256},
            finding=by_udp,
            setting="Packets of 256 lanes, one process that plays all hosts. Measured.",
            xlabel="Workers",
            **RATES,
        ),
    ],
    ranges={"seconds": (0.1, 3600), "workers": (1, MAX_WORKERS)},
    choices={"lanes": COMPILED_LANES},
)

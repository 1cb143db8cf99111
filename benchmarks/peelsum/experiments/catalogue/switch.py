"""Rate and latency of a switch: the softswitch and BMv2, in memory and on ports, by lanes and workers.

One compiled pipeline in the softswitch, with ports in memory, over UDP, and on virtual Ethernet pairs by
AF_XDP and AF_PACKET, and in BMv2 on such pairs. They need root, and BMv2 `simple_switch_grpc` on PATH; where
one is missing, every row says so, and there are no ratios. `seconds` is the duration of each row's rate
measurement, and of its latency measurement. The first sums of every run are compared with the sums of what
was sent. A forwarder sums nothing and sends every frame back where it came from: the limit of such ports.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.switch.rows import compared
from peelsum.experiments import Column, Experiment, Plot, Size
from peelsum.wire import COMPILED_LANES, MAX_WORKERS


def measure(seed: int, lanes: int, workers: int, seconds: float) -> Any:
    """Measure every switch."""
    return compared(lanes, workers, seconds)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "target": Column("the switch: `embedded` for the softswitch, `bmv2`, or a plain `forwarder`"),
        "ports": Column("what its ports are: `memory`, `udp`, or on veth `xdp` and `packet`"),
        "packets_per_s": Column("contributions per second that went into complete sums"),
        "packets_per_cpu_s": Column("the same per second of the switch process's processor time"),
        "latency_p50_us": Column("median time from a chunk's last contribution in to its sum out"),
        "latency_p99_us": Column("99th percentile of the same time"),
        "slots_timed": Column("chunks whose latency was measured, one at a time"),
        "bmv2": Column("`measured`, or the reason why BMv2 was not"),
        "rate_to_bmv2": Column("`packets_per_s` over BMv2's with as many lanes and workers"),
        "latency_to_bmv2": Column("`latency_p50_us` over BMv2's"),
        "first_packet_cold_s": Column(
            "seconds from import to the first packet's output, without compiled code"
        ),
        "first_packet_cached_s": Column("the same with compiled code on disk"),
        "lost_chunks": Column("chunks that the load gave up after a silence"),
    },
    keys=("target", "ports"),
    sizes={
        "quick": Size([{"lanes": 32, "workers": 2, "seconds": 0.1}], 1),
        "usual": Size([{"lanes": (32, 64, 128, 256), "workers": 4, "seconds": 3.0}], 1),
    },
    plots=[
        Plot("by_lanes", "lanes", "packets_per_s", "ports", {"workers": 4}, "xy"),
        Plot("by_workers", "workers", "packets_per_s", "ports", {"lanes": 256}, "xy"),
    ],
    ranges={"seconds": (0.1, 3600), "workers": (1, MAX_WORKERS)},
    choices={"lanes": COMPILED_LANES},
)

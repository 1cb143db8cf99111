"""Packets per second and latency of the switch program: embedded, in BMv2, and in eight processes at once."""

from __future__ import annotations

from peelsum.experiments import Column, Experiment, Plot, Size, Value

#: The names of `peelsum.bench.switch` for a target's ports.
PORTS = {"embedded, memory": "memory", "embedded, udp": "udp", "bmv2": "veth"}


def measure(
    seed: int, target: str, lanes: int, workers: int, switches: int, seconds: float
) -> dict[str, Value]:
    """Measure `switches` switches at the same time, each with a load of its own."""
    from concurrent.futures import ThreadPoolExecutor

    from peelsum.bench.switch.rows import measured
    from peelsum.topology import TopologyError, bmv2

    nothing = dict.fromkeys(EXPERIMENT.columns)
    if target == "bmv2" and not bmv2.available():
        return {**nothing, "note": "simple_switch_grpc (BMv2) is not on PATH"}
    try:
        with ThreadPoolExecutor(switches) as pool:
            rows = list(pool.map(lambda _: measured(PORTS[target], lanes, workers, seconds), range(switches)))
    except TopologyError as error:
        if target == "bmv2":
            return {**nothing, "note": f"BMv2: {error}"}
        raise
    packets = sum(row.packets_per_s for row in rows)
    return {
        "packets_per_s": packets,
        "gbit_s": 32 * lanes * packets / 1e9,
        "latency_us": max(row.latency_p50_us for row in rows),
        "latency_p99_us": max(row.latency_p99_us for row in rows),
        "slowest_over_fastest": min(row.packets_per_s for row in rows)
        / max(row.packets_per_s for row in rows),
    }


def part(
    targets: tuple[str, ...], lanes: tuple[int, ...], switches: tuple[int, ...], seconds: float
) -> dict[str, tuple[Value, ...]]:
    """Return one part of a grid, with four workers at each switch."""
    return {
        "target": targets,
        "lanes": lanes,
        "workers": (4,),
        "switches": switches,
        "seconds": (seconds,),
    }


EXPERIMENT = Experiment(
    name="switch",
    title="Embedded against BMv2, and one switch against eight",
    about="""
One compiled pipeline gets the contributions of four workers, whose sums and results go round. Ports of the
softswitch are in memory or over loopback UDP; BMv2 has virtual Ethernet pairs, and is measured where
`simple_switch_grpc` is on PATH. With eight switches, eight processes and eight loads share the machine.
""",
    measure=measure,
    columns={
        "packets_per_s": Column("contributions per second that went into complete sums, all switches"),
        "gbit_s": Column("gigabits of words per second in these contributions"),
        "latency_us": Column("microseconds from a chunk's last contribution in to its sum out, median"),
        "latency_p99_us": Column("99th percentile of the same time, in microseconds"),
        "slowest_over_fastest": Column("rate of the slowest switch over that of the fastest"),
    },
    sizes={
        "quick": Size(
            [
                part(("embedded, memory", "embedded, udp", "bmv2"), (256,), (1,), 0.5),
                part(("embedded, udp",), (256,), (2,), 0.5),
            ],
            2,
        ),
        "usual": Size(
            [
                part(("embedded, memory", "embedded, udp", "bmv2"), (32, 256), (1,), 1.0),
                part(("embedded, udp",), (256,), (2, 8), 1.0),
            ],
            3,
        ),
        "full": Size(
            [
                part(("embedded, memory", "embedded, udp", "bmv2"), (32, 64, 128, 256), (1,), 3.0),
                part(("embedded, udp", "bmv2"), (256,), (2, 4, 8), 3.0),
            ],
            7,
        ),
    },
    plots=[
        Plot("rate", x="lanes", y="packets_per_s", lines="target", where={"switches": 1}, log="xy"),
        Plot("switches", x="switches", y="packets_per_s", where={"target": "embedded, udp", "lanes": 256}),
    ],
)

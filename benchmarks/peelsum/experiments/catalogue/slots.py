"""Slots from plenty to one in a hundred: what falls to the servers, and how jobs share the rest."""

from __future__ import annotations

from peelsum.experiments import Column, Experiment, Plot, Size, Value


def measure(seed: int, slots: int, jobs: int, outstanding: int, workers: int) -> dict[str, Value]:
    """Let jobs sum one tensor each over one switch, in virtual time."""
    from peelsum.bench.slots import Scene, share_slots

    found = share_slots(Scene(slots, jobs, outstanding, workers, seed=seed))
    return {
        "at_server": found.at_server,
        "packets_to_servers": found.packets_to_servers,
        "fairness": found.fairness,
        "chunks_per_ms": sum(found.chunks_per_s) / 1e3,
        "slowest_over_fastest": min(found.chunks_per_s) / max(found.chunks_per_s),
        "wrong": found.wrong,
    }


def grid(
    outstanding: int, slots: tuple[int, ...], jobs: tuple[int, ...]
) -> list[dict[str, tuple[Value, ...]]]:
    """Return one part: all of these slots and jobs."""
    return [{"slots": slots, "jobs": jobs, "outstanding": (outstanding,), "workers": (2,)}]


EXPERIMENT = Experiment(
    name="slots",
    title="Slots from plenty to one in a hundred",
    about="""
One to eight jobs of two workers each sum one tensor, in virtual time: real endpoints and servers, and the
executable specification of the switch with any number of slots. All jobs together may have `outstanding`
chunks under way; every job begins at a random slot. Links take 1 us a packet and 0.1 ms; every job has a
server with a link of its own, so that jobs share nothing but slots. A job starts with 128 chunks under way,
as in training. Since time is virtual, nothing here depends on the machine.
""",
    measure=measure,
    columns={
        "at_server": Column(
            "share of chunks that the servers summed, because the switch had no slot", modelled=True
        ),
        "packets_to_servers": Column("packets that reached a server, for each chunk", modelled=True),
        "fairness": Column("Jain's index of the jobs' chunks per second", modelled=True),
        "chunks_per_ms": Column("chunks summed per millisecond of virtual time, all jobs", modelled=True),
        "slowest_over_fastest": Column("rate of the slowest job over that of the fastest", modelled=True),
        "wrong": Column("words that differ from an independent sum"),
    },
    sizes={
        "quick": Size(grid(6400, (256, 1024, 8192), (1, 8)), 3),
        "usual": Size(grid(25_600, (256, 1024, 4096, 16_384, 65_536), (1, 2, 4, 8)), 7),
        "full": Size(grid(25_600, tuple(2**bits for bits in range(8, 17)), (1, 2, 4, 8)), 25),
    },
    plots=[
        Plot("at_server", x="slots", y="at_server", lines="jobs", log="x"),
        Plot("fairness", x="slots", y="fairness", lines="jobs", log="x"),
    ],
    timed=False,
)

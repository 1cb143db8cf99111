"""Slots from plenty to one in a hundred: what falls to the servers, and how jobs share the rest."""

from __future__ import annotations

from peelsum.experiments import Column, Experiment, Plot, Size, Value


def measure(
    seed: int, slots: int, jobs: int, protocol: str, links: str, outstanding: int, workers: int
) -> dict[str, Value]:
    """Let jobs sum one tensor each over one switch, in virtual time."""
    from peelsum.bench.slots import Scene, share_slots, share_slots_atp

    share = share_slots_atp if protocol == "atp" else share_slots
    found = share(Scene(slots, jobs, outstanding, workers, windows=2, seed=seed, full=links == "long"))
    return {
        "slots_over_need": slots / outstanding,
        "at_server": found.at_server,
        "packets_to_servers": found.packets_to_servers,
        "fairness": found.fairness,
        "chunks_per_ms": sum(found.chunks_per_s) / 1e3,
        "slowest_over_fastest": min(found.chunks_per_s) / max(found.chunks_per_s),
        "wrong": found.wrong,
    }


def grid(
    outstanding: int, slots: tuple[int, ...], jobs: tuple[int, ...], links: tuple[str, ...]
) -> dict[str, tuple[Value, ...]]:
    """Return one part: all of these slots, jobs and links, by both protocols."""
    return {
        "slots": slots,
        "jobs": jobs,
        "protocol": ("peelsum", "atp"),
        "links": links,
        "outstanding": (outstanding,),
        "workers": (2,),
    }


#: From 256% to 1% of the slots that 25,600 outstanding chunks need.
SLOTS = (256, 1024, 4096, 16_384, 65_536)
EXPERIMENT = Experiment(
    name="slots",
    title="Slots from plenty to one in a hundred",
    about="""
One to eight jobs of two workers each sum one tensor, in virtual time. All jobs together may have
`outstanding` chunks under way. Every job has a server with a link of its own, and every link takes 1 us
for a packet, so that jobs share nothing but slots. Since time is virtual, nothing here depends on the
machine.

`peelsum`: real endpoints and servers, and the executable specification of the switch with any number of
slots; every job begins at a random slot. `atp`: a model of Lao et al., NSDI'21: a hash of job and chunk
selects the slot, and the server sends every result. Its time-out is fixed; saturation and rehashing are
left out. No figure is ATP's own.

On `long` links, all outstanding chunks hold slots at one time, so that `slots` of `outstanding` is the
share of slots that there is. On `short` links of 0.1 ms, as in a rack, a job starts with 128 chunks
under way and holds about 200 slots at the links' rate, whatever it is allowed.
""",
    measure=measure,
    columns={
        "slots_over_need": Column("slots of the switch over the outstanding chunks", modelled=True),
        "at_server": Column(
            "share of chunks that the servers summed, because the switch had no slot", modelled=True
        ),
        "packets_to_servers": Column("packets that reached a server, for each chunk", modelled=True),
        "fairness": Column("Jain's index of the jobs' chunks per second", modelled=True),
        "chunks_per_ms": Column("chunks summed per millisecond of virtual time, all jobs", modelled=True),
        "slowest_over_fastest": Column("rate of the slowest job over that of the fastest", modelled=True),
        "wrong": Column("sums, or ATP's chunks, that differ from an independent sum"),
    },
    sizes={
        "quick": Size([grid(6400, (256, 8192), (1, 8), ("long",)), grid(6400, (1024,), (8,), ("short",))], 2),
        "usual": Size(
            [
                grid(25_600, SLOTS, (1, 2, 4, 8), ("long",)),
                grid(25_600, SLOTS[1:4], (2, 8), ("short",)),
            ],
            3,
        ),
        "full": Size(
            [grid(25_600, tuple(2**bits for bits in range(8, 17)), (1, 2, 4, 8), ("long", "short"))], 25
        ),
    },
    plots=[
        Plot("at_server", "slots", "at_server", "jobs", {"protocol": "peelsum", "links": "long"}, "x"),
        Plot("at_server_atp", "slots", "at_server", "jobs", {"protocol": "atp", "links": "long"}, "x"),
        Plot("fairness", "slots", "fairness", "protocol", {"jobs": 8, "links": "short"}, "x"),
    ],
    timed=False,
)

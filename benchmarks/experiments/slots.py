"""Slots from plenty to one in a hundred.

One to eight jobs of two workers each sum one tensor, in virtual time. All jobs together may have
`outstanding` chunks under way. Every job has a server with a link of its own, and every link takes 1 us
for a packet, so that jobs share nothing but slots. Since time is virtual, nothing here depends on the
machine.

`peelsum`: real endpoints and servers, and the executable specification of the switch with any number of
slots; every job begins at a random slot. `atp`: our P4 program of Lao et al., NSDI'21, in the softswitch, and
our hosts: a hash of job and place in the window selects the slot, another one after a collision, and the
server sends every result. Its time-out is fixed; saturation is left out. No figure is ATP's own.

On `long` links, all outstanding chunks hold slots at one time, so that `slots` of `outstanding` is the
share of slots that there is. On `short` links of 0.1 ms, as in a rack, a job starts with 128 chunks
under way and holds about 200 slots at the links' rate, whatever it is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from benchmarks import SERIES, Experiment, Plot, Size, Value
from benchmarks.rivals.program_bench import run_protocol
from benchmarks.rivals.slot_protocols import PROTOCOLS
from peelsum.simulation import Job, NetworkSection, Scenario, Simulation, TimersSection
from peelsum.simulation.simulation import frame_bytes

#: Words of a chunk. Few, because the specification adds them one by one; times count whole packets.
LANES = 4
#: Seconds that a link takes to send one packet.
PACKET_S = 1e-6


def jain(rates: Iterable[float]) -> float:
    """Return Jain's index of fairness (DEC-TR-301); 0 if all rates are 0.

    It is 1 if all are equal, and 1/n if one of n jobs has everything.
    """
    rates = list(rates)
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def measure(
    seed: int, slots: int, jobs: int, protocol: str, links: str, outstanding: int, workers: int
) -> dict[str, Value]:
    """Let jobs sum a tensor of two windows each over one switch, in virtual time.

    slots: a power of two, at least 256. seed: determines words and, for peelsum, where each job's chunks
    begin among the slots. links: on "long" ones, jobs start with all outstanding chunks, which hold slots at
    one time; on others, with at most 128.
    """
    long, window = links == "long", outstanding // jobs
    chunks = 2 * window
    # A slot is held from the switch to the server and back, which is two links.
    delay_s = outstanding * PACKET_S / 2 if long else 100e-6
    network = NetworkSection(
        gbps=8e-9 * frame_bytes(LANES) / PACKET_S, delay_us=1e6 * delay_s, queue=1 << 20, mark_from=1 << 30
    )
    # The time-out of ATP's hosts is fixed, and longer than a round trip, queues included.
    fixed = {"resend_least": 20 * delay_s, "resend_most": 1.0} if protocol == "atp" else {}
    job = Job(
        workers=workers,
        elements=LANES * chunks,
        window=window,
        initial_window=window if long else min(window, 128),
        timers=TimersSection(**fixed),
    )
    random = Random(seed)
    salted = tuple(job.model_copy(update={"salt": random.randrange(slots)}) for _ in range(jobs))
    scenario = Scenario(seed=seed, lanes=LANES, slots=slots, limit_s=600.0, network=network, jobs=salted)
    if protocol == "atp":
        row = run_protocol(scenario, "atp", PROTOCOLS["atp"])
        seconds, to_servers, wrong = row.job_seconds, row.to_servers, row.wrong
        at_server = 1 - (row.in_switch or 0)
    else:
        simulation = Simulation(scenario)
        rows = simulation.run().jobs
        seconds, wrong = tuple(row.seconds for row in rows), sum(row.wrong for row in rows)
        hosts = [run.server for run in simulation.jobs if run.server is not None]
        at_servers = (server.stats().chunks_at_server for host in hosts for server in host.servers.values())
        at_server = sum(at_servers) / (chunks * jobs)
        counts = simulation.engine.counts()
        to_servers = sum(counts[f"to server {run.number}"].delivered for run in simulation.jobs)
    rates = [chunks / job_s for job_s in seconds]
    return {
        "slots_over_need": slots / outstanding,
        "at_server": at_server,
        "packets_to_servers": to_servers / (chunks * jobs),
        "fairness": jain(rates),
        "chunks_per_ms": sum(rates) / 1e3,
        "slowest_over_fastest": min(rates) / max(rates),
        "wrong": wrong,
    }


#: From 256% to 1% of the slots that 25,600 outstanding chunks need.
SLOTS = (256, 1024, 4096, 16_384, 65_536)
ALONG: dict[str, Any] = {
    "x": "slots_over_need",
    "log": "x",
    "percent": "xy",
    "setting": "Jobs of two workers, at most 25,600 chunks under way. Simulated.",
    "xlabel": "Slots of the switch over chunks under way (%)",
}
AT_SERVER: dict[str, Any] = {
    "y": "at_server",
    "ylabel": "Chunks that servers sum (%)",
    "lines": "jobs",
    "names": {"1": "one job", "2": "two jobs", "4": "four jobs", "8": "eight jobs"},
}
EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "slots_over_need": "slots of the switch over the outstanding chunks",
        "at_server": "share of chunks that the servers summed, because the switch had no slot",
        "packets_to_servers": "packets that reached a server, for each chunk",
        "fairness": "Jain's index of the jobs' chunks per second",
        "chunks_per_ms": "chunks summed per millisecond of virtual time, all jobs",
        "slowest_over_fastest": "rate of the slowest job over that of the fastest",
        "wrong": "sums, or ATP's chunks, that differ from an independent sum",
    },
    modelled_columns=(
        *("slots_over_need", "at_server", "packets_to_servers", "fairness", "chunks_per_ms"),
        "slowest_over_fastest",
    ),
    defaults={"protocol": ("peelsum", "atp"), "outstanding": 25_600, "workers": 2},
    sizes={
        "quick": Size(
            [
                {"slots": (256, 8192), "jobs": (1, 8), "links": "long", "outstanding": 6400},
                {"slots": 1024, "jobs": 8, "links": "short", "outstanding": 6400},
            ],
            2,
        ),
        "usual": Size(
            [
                {"slots": SLOTS, "jobs": (1, 2, 4, 8), "links": "long"},
                {"slots": SLOTS[1:4], "jobs": (2, 8), "links": "short"},
            ],
            3,
        ),
        "full": Size(
            [{"slots": tuple(2**n for n in range(8, 17)), "jobs": (1, 2, 4, 8), "links": ("long", "short")}],
            25,
        ),
    },
    plots=[
        Plot(
            "at_server",
            where={"protocol": "peelsum", "links": "long"},
            finding="""With slots for 64% of the chunks, servers sum {1@0.64:.0%} to {8@0.64:.0%} of them, and
                with 1% {1@0.01:.1%} to {8@0.01:.1%}""",
            **ALONG,
            **AT_SERVER,
        ),
        Plot(
            "at_server_atp",
            where={"protocol": "atp", "links": "long"},
            finding="""ATP's hash leaves servers {1@0.64:.0%} of the chunks with 64% of the slots, and
                {1@2.56:.0%} with 256%, for any number of jobs""",
            **ALONG,
            **AT_SERVER,
        ),
        Plot(
            "fairness",
            y="slowest_over_fastest",
            lines="protocol",
            where={"jobs": 8, "links": "short"},
            finding="""With 16% of the slots on short links, the slowest of eight jobs has {peelsum@0.16:.0%}
                of the fastest's rate with peelsum, {atp@0.16:.0%} with ATP's hash""",
            ylabel="Rate of the slowest job over that of the fastest (%)",
            names=SERIES,
            **ALONG,
        ),
    ],
    ranges={"slots": (256, 2**20), "jobs": (1, 64), "outstanding": (1, 2**20), "workers": (2, 32)},
    timed=False,
)

"""Slots from plenty to one in a hundred.

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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks import SERIES, Column, Experiment, Plot, Size, Value
from benchmarks.experiments.fairness import jain
from benchmarks.rivals.slot_model import run_protocol
from benchmarks.rivals.slot_protocols import PROTOCOLS
from peelsum.simulation import Job, NetworkSection, Scenario, Simulation, TimersSection
from peelsum.simulation.simulation import frame_bytes

#: Words of a chunk. Few, because the specification adds them one by one; times count whole packets.
LANES = 4
#: Seconds that a link takes to send one packet.
PACKET_S = 1e-6


@dataclass(frozen=True)
class Scene:
    """Jobs that each sum one tensor."""

    slots: int
    """Slots of the switch: a power of two, at least 256."""
    jobs: int
    outstanding: int
    """Chunks that all jobs together may have under way."""
    workers: int = 2
    """Workers of a job."""
    windows: int = 3
    """Length of a tensor, in windows of its job."""
    seed: int = 0
    """Determines words, and where each job's chunks begin among the slots."""
    full: bool = False
    """Whether jobs start with all outstanding chunks, on links so long that these hold slots at one time.

    Otherwise they start with at most 128 chunks, and links take 0.1 ms.
    """

    @property
    def window(self) -> int:
        """Chunks that a job may have under way."""
        return self.outstanding // self.jobs

    @property
    def initial_window(self) -> int:
        """Chunks that a job may have under way at its start."""
        return self.window if self.full else min(self.window, 128)

    @property
    def delay_s(self) -> float:
        """Seconds of a link. A slot is held from the switch to the server and back, which is two links."""
        return self.outstanding * PACKET_S / 2 if self.full else 100e-6


@dataclass(frozen=True)
class Shares:
    """The results of a scene's jobs."""

    chunks_per_s: tuple[float, ...]
    """Chunks summed per second of virtual time, by job."""
    at_server: float
    """Share of all chunks that a server summed, because the switch could not."""
    packets_to_servers: float
    """Packets that reached a server, for each chunk."""
    fairness: float
    """Jain's index of `chunks_per_s`."""
    wrong: int
    """Sums, or ATP's chunks, that differ from an independent sum, at all workers."""


def share_slots(scene: Scene) -> Shares:
    """Run a scene to its end. Every job begins at a slot that the seed draws."""
    simulation = Simulation(_scenario(scene, TimersSection()))
    report = simulation.run()
    chunks = scene.windows * scene.window * scene.jobs
    servers = [job.server for job in simulation.jobs if job.server is not None]
    at_servers = sum(server.stats().chunks_at_server for host in servers for server in host.servers.values())
    links = simulation.engine.counts()
    to_servers = sum(links[f"to server {job.number}"].delivered for job in simulation.jobs)
    return _shares(
        scene,
        [row.seconds for row in report.jobs],
        at_servers / chunks,
        to_servers,
        sum(row.wrong for row in report.jobs),
    )


def share_slots_atp(scene: Scene) -> Shares:
    """Run the model of ATP for a scene to its end. Its slots are hashed; the seed decides only the words."""
    # The model's time-out is fixed, and longer than a round trip, queues included.
    timers = TimersSection(resend_least=20 * scene.delay_s, resend_most=1.0)
    row = run_protocol(_scenario(scene, timers), "atp", PROTOCOLS["atp"])
    return _shares(scene, row.job_seconds, 1 - row.in_switch, row.to_servers, row.wrong)


def _scenario(scene: Scene, timers: TimersSection) -> Scenario:
    random = Random(scene.seed)
    network = NetworkSection(
        gbps=8e-9 * frame_bytes(LANES) / PACKET_S,
        delay_us=1e6 * scene.delay_s,
        queue=1 << 20,
        mark_from=1 << 30,
    )
    jobs = tuple(
        Job(
            workers=scene.workers,
            elements=LANES * scene.windows * scene.window,
            window=scene.window,
            initial_window=scene.initial_window,
            salt=random.randrange(scene.slots),
            timers=timers,
        )
        for _ in range(scene.jobs)
    )
    return Scenario(
        seed=scene.seed, lanes=LANES, slots=scene.slots, limit_s=600.0, network=network, jobs=jobs
    )


def _shares(scene: Scene, seconds: Sequence[float], at_server: float, to_servers: int, wrong: int) -> Shares:
    chunks = scene.windows * scene.window
    rates = tuple(chunks / each for each in seconds)
    return Shares(rates, at_server, to_servers / (chunks * scene.jobs), jain(rates), wrong)


def measure(
    seed: int, slots: int, jobs: int, protocol: str, links: str, outstanding: int, workers: int
) -> dict[str, Value]:
    """Let jobs sum one tensor each over one switch, in virtual time."""
    share = share_slots_atp if protocol == "atp" else share_slots
    result = share(Scene(slots, jobs, outstanding, workers, windows=2, seed=seed, full=links == "long"))
    return {
        "slots_over_need": slots / outstanding,
        "at_server": result.at_server,
        "packets_to_servers": result.packets_to_servers,
        "fairness": result.fairness,
        "chunks_per_ms": sum(result.chunks_per_s) / 1e3,
        "slowest_over_fastest": min(result.chunks_per_s) / max(result.chunks_per_s),
        "wrong": result.wrong,
    }


#: From 256% to 1% of the slots that 25,600 outstanding chunks need.
SLOTS = (256, 1024, 4096, 16_384, 65_536)
ALONG: dict[str, Any] = {
    "x": "slots_over_need",
    "log": "x",
    "percent": "xy",
    "setting": "Jobs of two workers, at most 25,600 chunks under way. Simulated; ATP is a model.",
    "xlabel": "Slots of the switch over chunks under way (%)",
}


EXPERIMENT = Experiment(
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
            [
                {
                    "slots": tuple(2**bits for bits in range(8, 17)),
                    "jobs": (1, 2, 4, 8),
                    "links": ("long", "short"),
                }
            ],
            25,
        ),
    },
    plots=[
        Plot(
            "at_server",
            y="at_server",
            where={"protocol": "peelsum", "links": "long"},
            finding=(
                "With slots for 64% of the chunks, servers sum {1@0.64:.0%} to {8@0.64:.0%} of them, and "
                "with 1% {1@0.01:.1%} to {8@0.01:.1%}"
            ),
            ylabel="Chunks that servers sum (%)",
            names={"1": "one job", "2": "two jobs", "4": "four jobs", "8": "eight jobs"},
            **ALONG | {"lines": "jobs"},
        ),
        Plot(
            "at_server_atp",
            y="at_server",
            where={"protocol": "atp", "links": "long"},
            finding=(
                "ATP's hash leaves servers {1@0.64:.0%} of the chunks with 64% of the slots, and "
                "{1@2.56:.0%} with 256%, for any number of jobs"
            ),
            ylabel="Chunks that servers sum (%)",
            names={"1": "one job", "2": "two jobs", "4": "four jobs", "8": "eight jobs"},
            **ALONG | {"lines": "jobs"},
        ),
        Plot(
            "fairness",
            y="slowest_over_fastest",
            where={"jobs": 8, "links": "short"},
            finding=(
                "With 16% of the slots on short links, the slowest of eight jobs has {peelsum@0.16:.0%} of "
                "the fastest's rate with peelsum, {atp@0.16:.0%} with ATP's hash"
            ),
            ylabel="Rate of the slowest job over that of the fastest (%)",
            **ALONG | {"lines": "protocol", "names": SERIES},
        ),
    ],
    ranges={"slots": (256, 2**20), "jobs": (1, 64), "outstanding": (1, 2**20), "workers": (2, 32)},
    timed=False,
)

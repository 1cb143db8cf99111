"""Run a scene in virtual time (`peelsum.simulation`). Two runs of a scene are identical, packet by packet."""

from __future__ import annotations

from collections.abc import Sequence

from peelsum.bench.fairness.scene import Scene, Shares
from peelsum.simulation import Job, NetworkSection, Scenario, Simulation
from peelsum.softswitch.runtime.queues import QueueCounts

#: Delay of a link in microseconds, in addition to its rate.
HOP_US = 10.0
#: More sums than a scene has time for.
_ENDLESS = 1 << 30
#: The link from the switch to the servers of all jobs.
SERVERS = "to server"


def simulated(scene: Scene) -> Shares:
    """Run a scene in virtual time."""
    network = virtual_network(scene)
    network.engine.run_until(scene.settle_s)
    before = summed(network)
    network.engine.run_until(scene.settle_s + scene.seconds)
    wrong = sum(job.wrong for job in network.jobs)
    return Shares.of(scene, before, summed(network), wrong, queue(network))


def virtual_network(scene: Scene, starts_s: Sequence[float] | None = None) -> Simulation:
    """Return the scene's simulation. `starts_s` are the jobs' start times; by default, all start at once."""
    network = NetworkSection(
        gbps=scene.mbit / 1000, delay_us=HOP_US, queue=scene.queue_limit, mark_from=scene.mark_from
    )
    jobs = tuple(
        Job(
            workers=scene.workers,
            elements=scene.chunks * scene.lanes,
            window=scene.window,
            sums=_ENDLESS,
            start_s=start_s,
        )
        for start_s in starts_s or [0.0] * scene.jobs
    )
    return Simulation(Scenario(lanes=scene.lanes, shared_server=True, network=network, jobs=jobs))


def summed(network: Simulation) -> list[float]:
    """Return the number of chunks that each job has summed, the mean over its workers."""
    stats = [[host.endpoint.stats() for host in job.workers] for job in network.jobs]
    return [sum(one.results for one in job) / len(job) for job in stats]


def queue(network: Simulation) -> QueueCounts:
    """Return the counts of the servers' port since the start."""
    counts = network.engine.links[SERVERS].counts()
    return QueueCounts(counts.delivered, counts.queue_full, counts.mean, counts.deepest)

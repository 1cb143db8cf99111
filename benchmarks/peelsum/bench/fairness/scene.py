"""Scenes of several jobs at one switch with rate-limited ports, and each job's share of the rate.

Every job has its own worker ports. One port leads to the servers of all jobs, which compete for it.
`virtual` and `udp` run a scene.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.control import ControlError, Controller, JobDescription
from peelsum.pipelines import pipeline
from peelsum.softswitch.runtime.queues import QUEUE_LIMIT, QueueCounts
from peelsum.topology.errors import TopologyError
from peelsum.transport import JobConfig, job_config
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

_STALL_S = 30.0


@dataclass(frozen=True)
class Scene:
    """A scene: jobs that always have more to sum."""

    jobs: int
    """Number of jobs."""
    workers: int = 2
    """Workers per job."""
    lanes: int = 256
    mbit: float = 20.0
    """Rate of every port in Mbit/s."""
    mark_from: int = 64
    """Packets in a port's queue from which on it sets ECN marks."""
    queue_limit: int = QUEUE_LIMIT
    """Packets that a port's queue holds."""
    window: int = 512
    chunks: int = 1000
    """Chunks per sum."""
    settle_s: float = 0.5
    """Seconds before the measurement."""
    seconds: float = 2.0
    """Duration of the measurement."""

    @property
    def server_port(self) -> int:
        """The servers' port, after the workers' ports."""
        return self.jobs * self.workers + 1

    def worker_ports(self, job: int) -> range:
        """Return the ports of one job's workers, in order; jobs are numbered from 0."""
        return range(job * self.workers + 1, (job + 1) * self.workers + 1)

    @property
    def frame_s(self) -> float:
        """Seconds that a port takes to send one chunk's frame."""
        return 8 * (FRAME_HEADER_BYTES + packet_bytes(self.lanes)) / (self.mbit * 1e6)

    def words(self) -> NDArray[np.uint32]:
        """Return each worker's words, uint32[workers, chunks * lanes]; seeded, and the same for every job."""
        shape = (self.workers, self.chunks * self.lanes)
        return np.random.default_rng(self.jobs).integers(0, 1 << 32, shape, np.uint32)


@dataclass(frozen=True)
class Shares:
    """The measurement of a scene."""

    chunks_per_s: tuple[float, ...]
    """Chunks summed per second, by job."""
    fairness: float
    """Jain's index of `chunks_per_s`: 1 if all are equal, 1/n if one of n jobs has everything."""
    used: float
    """Share of the servers' port's capacity that was used."""
    wrong: int
    """Sums with a wrong bit, since the start of the scene."""
    queue: QueueCounts
    """Counters of the servers' port, since the start of the scene."""

    @classmethod
    def of(
        cls, scene: Scene, before: Sequence[float], after: Sequence[float], wrong: int, queue: QueueCounts
    ) -> Shares:
        """Compute shares from each job's summed chunks at the beginning and end of the measurement."""
        rates = tuple((b - a) / scene.seconds for a, b in zip(before, after, strict=True))
        return cls(rates, jain(rates), sum(rates) * scene.frame_s, wrong, queue)


def jain(rates: Sequence[float]) -> float:
    """Return Jain's index of fairness (DEC-TR-301); 0 if all rates are 0."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def admit(address: str, scene: Scene) -> list[JobConfig]:
    """Load the pipeline into the switch at P4Runtime address `address`, and admit the scene's jobs."""
    compiled = pipeline(scene.lanes)
    try:
        with Controller.connect(address) as controller:
            controller.load_pipeline(compiled.json_path, compiled.p4info_path)
            admitted = [
                controller.admit(_description(address, scene, job), free_slots=False)
                for job in range(scene.jobs)
            ]
    except ControlError as error:
        raise TopologyError(str(error)) from error
    return [job_config({**asdict(admission), "timeout_s": _STALL_S}) for admission in admitted]


def _description(address: str, scene: Scene, job: int) -> JobDescription:
    return JobDescription.model_validate(
        {
            "job": {"id": job + 1, "workers": scene.workers, "window": scene.window},
            "switch": {
                "p4runtime": address,
                "pipeline_lanes": scene.lanes,
                "queue_depth": scene.mark_from,
            },
            "ports": {"server": scene.server_port, "workers": list(scene.worker_ports(job))},
        }
    )

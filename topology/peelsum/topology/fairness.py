"""Several jobs at one switch whose ports have a rate: what each gets of it, and how deep the queues become.

Every job has worker ports of its own; one port leads to the servers of all, and there they compete. Owns what
is played and what is told of it; `fairness_virtual` and `fairness_udp` play it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.control import ControlError, Controller, JobDescription
from peelsum.target.artifacts import pipeline
from peelsum.target.queues import QUEUE_LIMIT, QueueCounts
from peelsum.topology.errors import TopologyError
from peelsum.transport import JobConfig, job_config
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

_STALL_S = 30.0


@dataclass(frozen=True)
class Scene:
    """What is played: `jobs` with `workers` each, which always have more to sum.

    mbit: at which every port sends. mark_from: packets that may wait at one before those behind are marked.
    chunks: of one sum. settle_s: how long they run before `seconds` of measuring begin.
    """

    jobs: int
    workers: int = 2
    lanes: int = 256
    mbit: float = 20.0
    mark_from: int = 64
    queue_limit: int = QUEUE_LIMIT
    window: int = 512
    chunks: int = 1000
    settle_s: float = 0.5
    seconds: float = 2.0

    @property
    def server_port(self) -> int:
        """The port behind the workers'."""
        return self.jobs * self.workers + 1

    def worker_ports(self, job: int) -> range:
        """The ports of one job's workers, in order; jobs count from 0."""
        return range(job * self.workers + 1, (job + 1) * self.workers + 1)

    @property
    def frame_s(self) -> float:
        """Seconds that a port takes to send one chunk's frame."""
        return 8 * (FRAME_HEADER_BYTES + packet_bytes(self.lanes)) / (self.mbit * 1e6)

    def words(self) -> NDArray[np.uint32]:
        """What each worker of every job sums, uint32[workers, chunks * lanes]; seeded."""
        shape = (self.workers, self.chunks * self.lanes)
        return np.random.default_rng(self.jobs).integers(0, 1 << 32, shape, np.uint32)


@dataclass(frozen=True)
class Shares:
    """What the jobs got while it was measured.

    chunks_per_s: summed, by job. fairness: Jain's index of these, 1 where all are equal, 1/n where one has
    all. used: share of what the servers' port could have sent. wrong: sums with a wrong bit, and queue: of
    the servers' port, both from the beginning on.
    """

    chunks_per_s: tuple[float, ...]
    fairness: float
    used: float
    wrong: int
    queue: QueueCounts

    @classmethod
    def of(
        cls, scene: Scene, before: Sequence[float], after: Sequence[float], wrong: int, queue: QueueCounts
    ) -> Shares:
        """From how many chunks each job had summed at the beginning and at the end of measuring."""
        rates = tuple((b - a) / scene.seconds for a, b in zip(before, after, strict=True))
        return cls(rates, jain(rates), sum(rates) * scene.frame_s, wrong, queue)


def jain(rates: Sequence[float]) -> float:
    """Jain's index of fairness (DEC-TR-301); 0 where nobody got anything."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def admit(address: str, scene: Scene) -> list[JobConfig]:
    """Load the pipeline into the switch whose P4Runtime is at `address`, and let the jobs in."""
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

"""Run a scene over UDP: the softswitch as a process, workers and servers as threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

import numpy as np
from numpy.typing import NDArray

from peelsum.bench.fairness.scene import Scene, Shares, admit
from peelsum.softswitch.runtime.queues import QueueCounts
from peelsum.summation import Part
from peelsum.topology.errors import TopologyError
from peelsum.topology.processes import Child
from peelsum.transport import AggregationService, JobConfig, SwitchSummation, TransportError
from peelsum.wire.datagrams import Address

Words = NDArray[np.uint32]


def over_udp(scene: Scene) -> Shares:
    """Run a scene over loopback. Raises TopologyError if a component fails."""
    options = ("--ports", str(scene.server_port), "--p4runtime", "127.0.0.1:0")
    rates = ("--port-rate", str(scene.mbit), "--port-queue", str(scene.queue_limit))
    switch = Child.peelsum("switch", "switch", "run", *options, *rates, "--json", "--child")
    try:
        at = switch.ready()
        configs = admit(f"{at['host']}:{at['grpc_port']}", scene)
        udp_ports = {int(port): (at["host"], udp) for port, udp in at["udp_ports"].items()}
        before, after, wrong = _played(scene, configs, udp_ports)
    finally:
        told = switch.stop()
    queue = QueueCounts(**told["queues"][str(scene.server_port)])
    return Shares.of(scene, before, after, wrong, queue)


def _played(
    scene: Scene, configs: Sequence[JobConfig], ports: Mapping[int, Address]
) -> tuple[list[float], list[float], int]:
    """Return each job's summed chunks when the measurement began and ended, and the number of wrong sums."""
    with ExitStack() as stack:
        stack.enter_context(_served(configs, ports[scene.server_port]))
        jobs = [
            stack.enter_context(_Job(scene, config, [ports[port] for port in scene.worker_ports(number)]))
            for number, config in enumerate(configs)
        ]
        time.sleep(scene.settle_s)
        before = [job.summed() for job in jobs]
        time.sleep(scene.seconds)
        after = [job.summed() for job in jobs]
        for job in jobs:
            job.end_soon()
    for job in jobs:
        if job.errors:
            raise TopologyError(f"job {job.config.job_id}: {job.errors[0]}") from job.errors[0]
    return before, after, sum(job.wrong for job in jobs)


@contextmanager
def _served(configs: Sequence[JobConfig], address: Address) -> Iterator[None]:
    """Run the servers of all jobs, behind one port, during the body."""
    with AggregationService(configs, address) as service:
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            yield
        finally:
            service.stop()
            thread.join()


class _Job:
    """The workers of one job, a thread each, which sum repeatedly during the body of `with`."""

    def __init__(self, scene: Scene, config: JobConfig, addresses: Sequence[Address]) -> None:
        self.config = config
        self.wrong = 0
        self.errors: list[TransportError] = []
        self._words = scene.words()
        self._sum = self._words.sum(0, dtype=np.uint32)
        self._lock = threading.Lock()
        self._rounds = 0
        self._ending = False
        self._summations: list[SwitchSummation] = []
        self._threads = [
            threading.Thread(target=self._work, args=(worker, address))
            for worker, address in enumerate(addresses)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_soon()
        for thread in self._threads:
            thread.join()

    def end_soon(self) -> None:
        """Let the workers finish their sums, and begin no others."""
        self._ending = True

    def summed(self) -> float:
        """Return the number of chunks summed so far, the mean over workers."""
        return sum(one.stats().results for one in self._summations) / len(self._threads)

    def _work(self, worker: int, address: Address) -> None:
        part, rounds = Part(self._words[worker], "add"), 0
        try:
            with SwitchSummation(self.config, worker, address) as summation:
                self._summations.append(summation)
                while self._may_begin(rounds):
                    (result,) = summation.sum_words([part])
                    self.wrong += not np.array_equal(result, self._sum)
                    rounds += 1
        except TransportError as error:
            self.errors.append(error)

    def _may_begin(self, rounds: int) -> bool:
        """Return whether another sum follows `rounds` sums; the answer is the same for all workers."""
        with self._lock:
            if not self._ending:
                self._rounds = max(self._rounds, rounds + 1)
            return rounds < self._rounds

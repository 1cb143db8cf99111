"""Train one subject with one method, all workers in one process, and count exactly what they send.

Theory of operation. All workers have the same parameters, so one model computes their gradients, one worker
after the other. Each worker's sum then runs in a thread of its own, over collectives in memory. Its code is
that of the communication hook, with the same bits. Times are processor time of a thread, so that waiting for
other workers does not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.accuracy.in_process import InProcess, Traffic, WorkerThreads
from benchmarks.accuracy.methods import MOMENTUM, MethodError, parse
from benchmarks.accuracy.subjects import Subject, SubjectName, divide, make_subject
from peelsum.allreduce import Allreduce, History, StepResult
from peelsum.compress import CompressedResult, CompressedSum, Memory
from peelsum.training import Batch, one_thread


@dataclass(frozen=True)
class TrainingSetting:
    """What determines a run: the same setting gives the same values and bytes."""

    model: SubjectName
    method: str
    """The compression method, as `benchmarks.accuracy.methods` names it."""
    workers: int = 4
    shares: str = "iid"
    """How examples are divided among workers: "iid", "label", or an alpha of Dirichlet's distribution."""
    seed: int = 0
    """The seed of parameters, batches and compressors."""
    steps: int | None = None
    """Steps of training; None takes the subject's."""
    device: str = "cpu"
    """Where the model computes, "cpu" or "cuda". Gradients are compressed and summed on the host."""


@dataclass(frozen=True)
class TrainingRun:
    """A finished run. Bytes and counts are totals of worker 0, which sends as much as any other."""

    setting: TrainingSetting
    data: str
    """Description of the data."""
    metric: str
    """The measure of what was learned, on data held out; more is better, unless it is a perplexity."""
    steps: int
    elements: int
    """Parameters of the model."""
    curve: list[tuple[int, float | None]]
    """The metric after each so many steps; None from where it, or a gradient, is not finite."""
    kind: str
    """How payloads were summed: "dense" or "exact" without a compressor, else its kind."""
    wire_bytes: int
    """Bytes that the worker contributed, by the hook's statistics."""
    payload_bytes: int
    """Bytes of its payloads; 0 without a compressor."""
    traffic: Traffic
    """The exchanges."""
    compute_s: float
    """Seconds of a step's forward and backward pass of one worker, and of the optimizer.

    It is the mean over all steps but the first, as `compress_s`.
    """
    compress_s: float
    """Seconds of a step's encoding and decoding of one worker."""

    @property
    def done(self) -> int:
        """Steps until training ended, at a gradient that was not finite or with the last step."""
        return self.curve[-1][0]


class Training:
    """A subject's training by a method. Use it with `with`.

    Raises MethodError if the method does not fit subject or number of workers, SharesError for shares.
    """

    def __init__(self, setting: TrainingSetting) -> None:
        self.subject = make_subject(setting.model, setting.seed)
        self.setting, self.steps = setting, setting.steps or self.subject.steps
        self._device = torch.device(setting.device)
        self.subject.model.to(self._device)
        self.method = parse(setting.method, self.steps, setting.seed)
        if self.method.momentum and self.subject.optimizer != "sgd":
            raise MethodError(
                f"compressor: {setting.method!r} has momentum, but {setting.model} is trained by Adam; leave "
                "it out, or train digits"
            )
        self._batches = batches(self.subject, setting)
        self._threads = WorkerThreads(setting.workers)
        self._memories = [Memory() for _ in range(setting.workers)]
        self._histories = [History() for _ in range(setting.workers)]
        self._sums = self._new_sums()
        self._optimizer = self.subject.make_optimizer(0.0 if self.method.momentum else MOMENTUM)
        self.wire_bytes = self.payload_bytes = self.done = 0
        self._compute_s = self._compress_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.__exit__()

    def step(self) -> bool:
        """Train one step; return whether all gradients were finite, without which nothing is updated."""
        started = self._clock()
        gradients = [self._gradients(rank) for rank in range(self.setting.workers)]
        self._compute_s += (self._clock() - started) / self.setting.workers
        results = self._threads.run(lambda rank: self._summed(rank, gradients[rank]))
        self._count(results)
        self.done += 1
        if self.done == 1:  # what is done only once, such as compiling, does not count
            self._compute_s = self._compress_s = 0.0
            self._sums = self._new_sums()  # as the hook does when DDP rebuilds its buckets
        if not all(tensor.finite for tensor in results[0].tensors):
            return False
        started = self._clock()
        for name, parameter in self.subject.model.named_parameters():
            average = torch.from_numpy(results[0][name].values.reshape(parameter.shape))
            parameter.grad = average.to(self._device)
        self._optimizer.step()
        self._compute_s += self._clock() - started
        return True

    def run(self, curve: list[tuple[int, float | None]]) -> TrainingRun:
        """Return the run so far: the counts, the times, and the curve of the metric by step."""
        subject, compressor = self.subject, self.method.compressor
        return TrainingRun(
            setting=self.setting,
            data=subject.data,
            metric=subject.metric,
            steps=self.steps,
            elements=sum(parameter.numel() for parameter in subject.model.parameters()),
            curve=curve,
            kind=compressor.kind if compressor else "dense" if self.method.dense else "exact",
            wire_bytes=self.wire_bytes,
            payload_bytes=self.payload_bytes,
            traffic=self._threads.members[0].traffic,
            compute_s=self._compute_s / max(self.done - 1, 1),
            compress_s=self._compress_s / max(self.done - 1, 1),
        )

    def _gradients(self, rank: int) -> dict[str, NDArray[np.float32]]:
        model = self.subject.model
        model.zero_grad()
        # Dropout must not depend on who else computes in this process.
        torch.manual_seed(dropout_seed(self.setting.seed, self.done, rank))
        model(*(inputs.to(self._device) for inputs in next(self._batches[rank]))).backward()
        named = list(model.named_parameters())
        # DDP rebuilds its buckets after a step, in the order in which gradients become ready.
        ordered = reversed(named) if self.done else named
        return {
            name: parameter.grad.cpu().numpy() for name, parameter in ordered if parameter.grad is not None
        }

    def measure(self) -> float:
        """Return the subject's metric, measured on the host, where its data are."""
        self.subject.model.cpu()
        metric = self.subject.measure()
        self.subject.model.to(self._device)
        return metric

    def _clock(self) -> float:
        """Return seconds of this thread's processor, or of the wall clock with all of a GPU's work done."""
        if self._device.type == "cpu":
            return time.thread_time()
        torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _new_sums(self) -> list[Allreduce | CompressedSum]:
        return [self._sum(member) for member in self._threads.members]

    def _sum(self, member: InProcess) -> Allreduce | CompressedSum:
        """Return what the hook would make for a bucket of all parameters, timed by the thread's clock."""
        compressor = self.method.compressor
        allreduce = Allreduce(
            member,
            forms="dense" if self.method.dense else "auto",
            average=True,
            seed=self.setting.seed,
            history=self._histories[member.worker_id],
            clock=time.thread_time,
        )
        if compressor is None:
            return allreduce
        return CompressedSum(
            member,
            compressor,
            self._memories[member.worker_id],
            error_feedback=self.method.feedback,
            allreduce=allreduce,
            collectives=member,
            clock=time.thread_time,
        )

    def _summed(self, rank: int, gradients: dict[str, Any]) -> StepResult | CompressedResult:
        backend = self._sums[rank]
        return backend.sum(gradients) if isinstance(backend, Allreduce) else backend.sum(gradients, self.done)

    def _count(self, results: list[StepResult | CompressedResult]) -> None:
        first = results[0]
        for name, other in product(first, results[1:]):
            if not np.array_equal(first[name].values.view(np.int32), other[name].values.view(np.int32)):
                raise AssertionError(f"{self.setting}: workers differ in {name}")
        self.wire_bytes += first.wire_bytes
        self.payload_bytes += first.payload_bytes if isinstance(first, CompressedResult) else 0
        self._compress_s += sum(result.encode_s + result.decode_s for result in results) / len(results)


def batches(subject: Subject, setting: TrainingSetting) -> list[Iterator[Batch]]:
    """Return each worker's endless batches."""

    def drawn(rank: int, share: NDArray[np.int64]) -> Iterator[Batch]:
        rng = np.random.default_rng([setting.seed, 2, rank])
        while True:
            yield subject.batch(rng.choice(share, subject.batch_size), rng)

    shares = divide(subject.labels, setting.workers, setting.shares, setting.seed)
    return [drawn(rank, share) for rank, share in enumerate(shares)]


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of torch's random numbers in a worker's step."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])


def train(setting: TrainingSetting) -> TrainingRun:
    """Train as the setting says; return the curve of the metric and what workers sent.

    Training ends early if a gradient or the metric is no longer finite.
    Raises MethodError, SharesError or TrainingDataError.
    """
    with one_thread(), Training(setting) as training:
        curve: list[tuple[int, float | None]] = [(0, _finite(training.measure()))]
        while training.done < training.steps and curve[-1][1] is not None:
            finite = training.step()
            if not finite:
                curve.append((training.done, None))
            elif training.done % training.subject.every == 0 or training.done == training.steps:
                curve.append((training.done, _finite(training.measure())))
        return training.run(curve)


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) and value < 1e300 else None

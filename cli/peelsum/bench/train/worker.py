"""One worker of `peelsum bench train`: train the model with DDP on each requested backend, timed and checked.

`peelsum.bench.train.rows` runs it as a separate process. The check is int64 arithmetic over gloo, which
shares no code with the codec or the switch.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not exported, but documented
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from peelsum.allreduce import AllreduceError, Part, RequestedForm, Summation
from peelsum.bench.devices import cpu_s
from peelsum.processes import hear, say
from peelsum.processes.reports import told_of_compiling
from peelsum.processes.user_errors import reported
from peelsum.summation import Words
from peelsum.torch import HookError, HookStats, SwitchAllreduceState, TopK, hook
from peelsum.training import Batch, Task, TrainingDataError, make_task
from peelsum.transport import TransportError
from peelsum.transport.seats import plug_in

#: The form in which each backend that uses the switch sends gradients.
FORMS: dict[str, RequestedForm] = {"switch": "auto", "switch-dense": "dense"}
#: The hook over gloo, and torch's own hook that halves gradients, besides the switch and plain gloo.
HOOK_OVER_GLOO, FP16 = "hook-gloo", "fp16"
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Job:
    """The options of one worker."""

    model: str
    small: bool
    path: str | None
    """Path of the data; None for data that every machine has."""
    rank: int
    workers: int
    store: str
    """Path of the file through which gloo's processes find each other."""
    interface: str
    """Network interface for gloo."""
    steps: int
    warm_ups: int
    seed: int
    top_k: float | None
    device: str
    """"cpu" or "cuda"."""


@dataclass(frozen=True)
class Iteration:
    """Seconds of one iteration."""

    all: float
    """The whole iteration."""
    optimizer: float
    """The optimizer's step."""
    optimizer_cpu: float
    """CPU seconds of the optimizer's step."""
    encode: float
    """Encoding, in the summing threads."""
    network: float
    """Waiting for sums, in the summing threads."""
    decode: float
    """Decoding, in the summing threads."""


@dataclass
class Recorder:
    """A communication hook that, while `on`, keeps a copy of this worker's own gradients, by bucket."""

    sum: Callable[[GradBucket], torch.futures.Future[torch.Tensor]]
    on: bool = False
    buckets: list[tuple[torch.Tensor, list[torch.Tensor]]] = field(default_factory=list)

    def __call__(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """See `DistributedDataParallel.register_comm_hook`."""
        if self.on:
            self.buckets.append((bucket.buffer().clone(), bucket.parameters()))
        return self.sum(bucket)

    def own(self) -> dict[torch.Tensor, torch.Tensor]:
        """Return the recorded gradients by parameter."""
        found: dict[torch.Tensor, torch.Tensor] = {}
        for buffer, parameters in self.buckets:
            parts = torch.split(buffer, [parameter.numel() for parameter in parameters])
            found |= {one: part.view_as(one) for one, part in zip(parameters, parts, strict=True)}
        return found


class TimedSums:
    """A backend that measures the seconds of another backend's sums."""

    def __init__(self, summation: Summation) -> None:
        self._summation = summation
        self.lanes, self.workers, self.worker_id = summation.lanes, summation.workers, summation.worker_id
        self.seconds = 0.0

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        started = time.perf_counter()
        results = self._summation.sum_words(parts)
        self.seconds += time.perf_counter() - started
        return results


class Trainer:
    """A new replica of the task's model, whose gradients one backend averages."""

    def __init__(
        self, task: Task, job: Job, path: str, sums: TimedSums | None, watched: Sequence[int] = ()
    ) -> None:
        """watched: ids of the switch's processes."""
        torch.manual_seed(job.seed + job.rank)  # for dropout; DDP copies rank 0's parameters to all
        self._job, self._path, self._watched = job, path, watched
        self._device = torch.device(job.device)
        self._model = DistributedDataParallel(copy.deepcopy(task.model).to(self._device))
        self._optimizer = task.optimizer(self._model.parameters())
        self._batches = task.batches(job.rank, job.workers, job.seed)
        self._state: SwitchAllreduceState | None = None
        self._sums, self._sparse = sums, path in ("switch", HOOK_OVER_GLOO) and job.top_k is not None
        if sums is not None or path == HOOK_OVER_GLOO:
            names = self._model.module.named_parameters()
            top_k = TopK(job.top_k) if self._sparse and job.top_k else None
            self._state = SwitchAllreduceState(
                over=sums or "gloo",
                names=names,
                forms=FORMS.get(path, "auto"),
                compressor=top_k,
            )
        #: Whether buckets are summed, or returned as they are: what DDP does beside sums is no part of them.
        self._summing = True
        self._recorder = Recorder(self._sum)
        # DDP reads a hook's annotations, which an object lacks.
        self._model.register_comm_hook(None, lambda state, bucket: self._recorder(state, bucket))

    def measure(self) -> dict[str, Any]:
        """Run steps to warm up, steps without sums, timed steps, a checked one, and sums alone.

        Seconds are per step: medians, but means of processor time beyond computation.
        """
        steps = self._job.steps
        self._iterations(self._job.warm_ups)
        unsummed, computing_s, _ = self._with_cpu(lambda: self._iterations(steps, summed=False))
        gradients_s = median(one.all for one in unsummed)
        self._iterations(1)
        before = self._stats().wire_bytes
        timed, cpu_s, switch_cpu_s = self._with_cpu(lambda: self._iterations(steps))
        computing_s += sum(one.optimizer_cpu for one in timed)
        after = self._stats()
        iteration_s = median(one.all for one in timed)
        compute_s = gradients_s + median(one.optimizer for one in timed)
        network_s = median(one.network for one in timed)
        self._recorder.on = True
        self._iterations(1)
        own = self._recorder.own()
        elements = sum(gradient.numel() for gradient in own.values())
        element_bytes = _FLOAT_BYTES / 2 if self._path == FP16 else _FLOAT_BYTES
        ring_bytes = 2 * (self._job.workers - 1) / self._job.workers * element_bytes * elements
        return {
            "path": self._path,
            "form": self._form(after),
            "elements": elements,
            **self._densities(after, own),
            "bytes_sent": (after.wire_bytes - before) / steps if self._state else ring_bytes,
            "iteration_s": iteration_s,
            "iteration_least_s": min(one.all for one in timed),
            "iteration_most_s": max(one.all for one in timed),
            "compute_s": compute_s,
            "encode_s": median(one.encode for one in timed),
            "network_s": network_s if self._state else max(0.0, iteration_s - compute_s),
            "decode_s": median(one.decode for one in timed),
            "wrong": self._wrong(own),
            "aggregation_s": median(self._sums_alone(steps)),
            "cpu_s": (cpu_s - computing_s) / steps,
            "switch_cpu_s": switch_cpu_s / steps,
        }

    def close(self) -> None:
        """Release the backend for the next trainer."""
        if self._state is not None:
            self._state.close()

    def _with_cpu(self, run: Callable[[], list[Iteration]]) -> tuple[list[Iteration], float, float]:
        """Run; return the result, and the CPU seconds of this process and of the switch's processes."""
        dist.barrier()
        watched_s, own_s = sum(map(cpu_s, self._watched)), time.process_time()
        result = run()
        dist.barrier()
        own_s, watched_s = time.process_time() - own_s, sum(map(cpu_s, self._watched)) - watched_s
        return result, own_s, watched_s

    def _sum(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if not self._summing:
            done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done
        if self._path == FP16:
            assert dist.group.WORLD is not None
            return fp16_compress_hook(dist.group.WORLD, bucket)
        return self._by_gloo(bucket.buffer()) if self._state is None else hook(self._state, bucket)

    def _plainly(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Average a buffer without the hook, in half precision if the path is torch's fp16."""
        if self._path != FP16:
            return self._by_gloo(buffer)
        return self._by_gloo(buffer.half()).then(lambda done: buffer.copy_(done.value()))

    def _by_gloo(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(buffer, async_op=True)
        future: torch.futures.Future[Any] = work.get_future()
        return future.then(lambda done: done.value()[0].div_(self._job.workers))

    def _form(self, stats: HookStats) -> str:
        forms = "+".join(sorted({one.form for one in stats.tensors.values()})) or "float32"
        return f"top {self._job.top_k:.2%}, {forms}" if self._sparse else forms

    def _densities(self, stats: HookStats, own: Mapping[torch.Tensor, torch.Tensor]) -> dict[str, float]:
        """Return the densities of the gradients, or, if they are sparsified, of what is sent."""
        if not self._sparse:
            return {"density_worker": _density(own), "density_union": _density(own, union=True)}
        sent = stats.tensors.values()
        elements = sum(one.elements for one in sent)
        return {
            "density_worker": sum(one.density_worker * one.elements for one in sent) / elements,
            "density_union": sum(one.density * one.elements for one in sent) / elements,
        }

    def _wrong(self, own: Mapping[torch.Tensor, torch.Tensor]) -> int | None:
        """Count wrong elements.

        Return None for gloo, which adds floats, and for top-k, as only the hook knows what was sent.
        """
        if self._state is None or self._sparse:
            return None
        names = {parameter: name for name, parameter in self._model.module.named_parameters()}
        sent = self._state.stats().tensors
        return sum(
            wrong_elements(parameter, gradient, sent[names[parameter]].error_bound)
            for parameter, gradient in own.items()
        )

    def _stats(self) -> HookStats:
        return HookStats() if self._state is None else self._state.stats()

    def _iterations(self, steps: int, *, summed: bool = True) -> list[Iteration]:
        """Run and measure `steps` iterations; all workers begin together."""
        batches = [tuple(one.to(self._device) for one in batch) for batch in islice(self._batches, steps)]
        self._settle()
        dist.barrier()
        return [self._iteration(batch, summed) for batch in batches]

    def _iteration(self, batch: Batch, summed: bool) -> Iteration:
        before, network_s = self._stats(), self._network_s
        started = time.perf_counter()
        self._optimizer.zero_grad()
        self._summing = summed
        self._model(*batch).backward()
        self._settle()
        computed, computed_cpu = time.perf_counter(), time.thread_time()
        if summed:
            self._optimizer.step()
        self._settle()
        ended, ended_cpu = time.perf_counter(), time.thread_time()
        after = self._stats()
        return Iteration(
            ended - started,
            ended - computed,
            ended_cpu - computed_cpu,
            after.encode_s - before.encode_s,
            self._network_s - network_s,
            after.decode_s - before.decode_s,
        )

    def _sums_alone(self, steps: int) -> Iterator[float]:
        """Sum all recorded buckets at once, `steps` times; yield the seconds of each."""
        for _ in range(steps):
            buckets = [(buffer.clone(), parameters) for buffer, parameters in self._recorder.buckets]
            self._settle()
            dist.barrier()
            started = time.perf_counter()
            sums = [
                self._plainly(buffer) if self._state is None else self._state.submit(buffer, parameters)
                for buffer, parameters in buckets
            ]
            torch.futures.wait_all(sums)
            self._settle()
            yield time.perf_counter() - started
            if self._state is not None:
                self._state.end_step()

    def _settle(self) -> None:
        """Wait for the GPU, so that times include its work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @property
    def _network_s(self) -> float:
        return self._stats().network_s if self._sums is None else self._sums.seconds


def _density(gradients: Mapping[torch.Tensor, torch.Tensor], *, union: bool = False) -> float:
    """Return the share of all gradients' elements that are non-zero on this worker; with `union`, on any."""
    occupied = 0
    for gradient in gradients.values():
        here = (gradient != 0).to(torch.uint8)
        if union:
            dist.all_reduce(here, dist.ReduceOp.MAX)
        occupied += int(here.count_nonzero())
    return occupied / max(1, sum(gradient.numel() for gradient in gradients.values()))


def wrong_elements(parameter: torch.Tensor, own: torch.Tensor, bound: float) -> int:
    """Count elements of the gradient with other bits on another worker, or with an error above `bound`.

    The error is the difference from the average of `own` over workers, in float64. Of differing bits, the
    worker with the largest, as an integer, counts none.
    """
    assert parameter.grad is not None
    bits, total = parameter.grad.view(torch.int32), own.double()
    most = bits.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_reduce(total)
    far = (parameter.grad.double() - total / dist.get_world_size()).abs() > bound
    return int((far | (bits != most)).count_nonzero())


def run(job: Job) -> None:
    """Train on each requested backend and print its measurement, until there are no more requests."""
    os.environ["GLOO_SOCKET_IFNAME"] = job.interface
    torch.set_num_threads(1)
    task = make_task(job.model, small=job.small, path=job.path, seed=job.seed)
    dist.init_process_group("gloo", init_method=f"file://{job.store}", rank=job.rank, world_size=job.workers)
    say(ready=True)
    while paths := (asked := hear())["paths"]:
        with ExitStack() as stack:
            seat = asked["seat"]
            sums = None if seat is None else TimedSums(stack.enter_context(plug_in(seat)))
            for path in paths:
                trainer = Trainer(task, job, path, sums, asked["watched"])
                say(**trainer.measure())
                trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    told_of_compiling(child=True)
    with reported(AllreduceError, TransportError, HookError, TrainingDataError):
        run(Job(**json.loads(sys.argv[1])))

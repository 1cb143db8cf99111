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
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # not exported, but documented
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from peelsum.allreduce import AllreduceError, RequestedForm, Summation
from peelsum.bench.devices import cpu_s
from peelsum.processes import print_message, receive_from_parent
from peelsum.processes.progress import compile_progress_reporter
from peelsum.processes.user_errors import exit_on_errors
from peelsum.torch import HookError, HookStats, SwitchAllreduceState, TopK, hook
from peelsum.training import Task, TrainingDataError, make_task
from peelsum.transport import TransportError
from peelsum.transport.seats import plug_in

#: The form in which each backend that uses the switch sends gradients.
FORMS: dict[str, RequestedForm] = {"switch": "auto", "switch-dense": "dense"}
#: The hook over gloo, and torch's own hook that halves gradients, besides the switch and plain gloo.
HOOK_OVER_GLOO, FP16 = "hook-gloo", "fp16"
_FLOAT_BYTES = 4

Future = torch.futures.Future[torch.Tensor]
#: Seconds of each iteration, by part: `all`, `optimizer`, `optimizer_cpu`, `encode`, `network`, `decode`.
Iterations = list[dict[str, float]]


@dataclass(frozen=True)
class WorkerOptions:
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
    """Share of elements that the hook sends; None for all."""
    device: str
    """"cpu" or "cuda"."""


class Trainer:
    """A new replica of the task's model, whose gradients one backend averages."""

    def __init__(
        self,
        task: Task,
        options: WorkerOptions,
        path: str,
        summation: Summation | None,
        switch_pids: Sequence[int] = (),
    ) -> None:
        """path: the backend. summation, switch_pids: of the switch, if the backend uses it."""
        torch.manual_seed(options.seed + options.rank)  # for dropout; DDP copies rank 0's parameters to all
        self._options, self._path, self._switch_pids = options, path, switch_pids
        self._device = torch.device(options.device)
        self._model = DistributedDataParallel(copy.deepcopy(task.model).to(self._device))
        self._optimizer = task.optimizer(self._model.parameters())
        self._batches = task.batches(options.rank, options.workers, options.seed)
        self._state: SwitchAllreduceState | None = None
        self._top_k = options.top_k if path in ("switch", HOOK_OVER_GLOO) else None
        if summation is not None or path == HOOK_OVER_GLOO:
            self._state = SwitchAllreduceState(
                over=summation or "gloo",
                names=self._model.module.named_parameters(),
                forms=FORMS.get(path, "auto"),
                compressor=TopK(self._top_k) if self._top_k else None,
            )
        #: Whether buckets are summed. Otherwise the hook returns them unchanged, to time the rest of DDP.
        self._summing = True
        #: Whether copies of this worker's gradients are kept, by bucket with its parameters, in `_buckets`.
        self._recording = False
        self._buckets: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        self._model.register_comm_hook(None, lambda _, bucket: self._sum(bucket))

    def measure(self) -> dict[str, Any]:
        """Run warm-up steps, steps without sums, timed steps, one checked step, and sums alone.

        Return seconds per step: medians, except for processor time beyond computation, which is a mean.
        """
        steps = self._options.steps
        self._iterations(self._options.warm_ups)
        unsummed, computing_s, _ = self._with_cpu(lambda: self._iterations(steps, summed=False))
        self._iterations(1)
        before = self._stats().wire_bytes
        timed, cpu_s, switch_cpu_s = self._with_cpu(lambda: self._iterations(steps))
        computing_s += sum(iteration["optimizer_cpu"] for iteration in timed)
        after = self._stats()
        times = {name: median(iteration[name] for iteration in timed) for name in timed[0]}
        compute_s = median(iteration["all"] for iteration in unsummed) + times["optimizer"]
        self._recording = True
        self._iterations(1)
        gradients: dict[torch.Tensor, torch.Tensor] = {}
        for buffer, parameters in self._buckets:
            parts = torch.split(buffer, [parameter.numel() for parameter in parameters])
            views = (part.view_as(parameter) for parameter, part in zip(parameters, parts, strict=True))
            gradients |= zip(parameters, views, strict=True)
        element_bytes = _FLOAT_BYTES / 2 if self._path == FP16 else _FLOAT_BYTES
        elements = sum(gradient.numel() for gradient in gradients.values())
        workers = self._options.workers
        ring_bytes = 2 * (workers - 1) / workers * element_bytes * elements
        return {
            "path": self._path,
            "form": self._form(after),
            "elements": elements,
            **self._densities(after, gradients),
            "bytes_sent": (after.wire_bytes - before) / steps if self._state else ring_bytes,
            "iteration_s": times["all"],
            "iteration_least_s": min(iteration["all"] for iteration in timed),
            "iteration_most_s": max(iteration["all"] for iteration in timed),
            "compute_s": compute_s,
            "encode_s": times["encode"],
            "network_s": times["network"] if self._state else max(0.0, times["all"] - compute_s),
            "decode_s": times["decode"],
            "wrong": self._wrong(gradients),
            "aggregation_s": median(self._time_sums_alone(steps)),
            "cpu_s": (cpu_s - computing_s) / steps,
            "switch_cpu_s": switch_cpu_s / steps,
        }

    def close(self) -> None:
        """Release the backend for the next trainer."""
        if self._state is not None:
            self._state.close()

    def _with_cpu(self, run: Callable[[], Iterations]) -> tuple[Iterations, float, float]:
        """Run; return the result, and the CPU seconds of this process and of the switch's processes."""
        dist.barrier()
        switch_s, process_s = sum(map(cpu_s, self._switch_pids)), time.process_time()
        result = run()
        dist.barrier()
        return result, time.process_time() - process_s, sum(map(cpu_s, self._switch_pids)) - switch_s

    def _sum(self, bucket: GradBucket) -> Future:
        """Average a bucket over the workers, as a communication hook does."""
        if self._recording:
            self._buckets.append((bucket.buffer().clone(), bucket.parameters()))
        if not self._summing:
            unchanged = Future()
            unchanged.set_result(bucket.buffer())
            return unchanged
        if self._path == FP16:
            assert dist.group.WORLD is not None
            return fp16_compress_hook(dist.group.WORLD, bucket)
        return self._gloo_average(bucket.buffer()) if self._state is None else hook(self._state, bucket)

    def _average(self, buffer: torch.Tensor, parameters: list[torch.Tensor]) -> Future:
        """Average the recorded gradients of a bucket outside of DDP."""
        if self._state is not None:
            return self._state.submit(buffer, parameters)
        if self._path != FP16:
            return self._gloo_average(buffer)
        return self._gloo_average(buffer.half()).then(lambda done: buffer.copy_(done.value()))

    def _gloo_average(self, buffer: torch.Tensor) -> Future:
        work = dist.all_reduce(buffer, async_op=True)
        future: torch.futures.Future[Any] = work.get_future()
        return future.then(lambda done: done.value()[0].div_(self._options.workers))

    def _form(self, stats: HookStats) -> str:
        forms = "+".join(sorted({tensor.form for tensor in stats.tensors.values()})) or "float32"
        return f"top {self._top_k:.2%}, {forms}" if self._top_k is not None else forms

    def _densities(
        self, stats: HookStats, gradients: Mapping[torch.Tensor, torch.Tensor]
    ) -> dict[str, float]:
        """Return the densities of the gradients, or, if they are sparsified, of what is sent."""
        if self._top_k is None:
            return {"density_worker": _density(gradients), "density_union": _density(gradients, union=True)}
        sent = stats.tensors.values()
        elements = sum(tensor.elements for tensor in sent)
        return {
            "density_worker": sum(tensor.density_worker * tensor.elements for tensor in sent) / elements,
            "density_union": sum(tensor.density * tensor.elements for tensor in sent) / elements,
        }

    def _wrong(self, gradients: Mapping[torch.Tensor, torch.Tensor]) -> int | None:
        """Count wrong elements of the last step.

        Return None for gloo, which adds floats, and for top-k, because only the hook knows what was sent.
        """
        if self._state is None or self._top_k is not None:
            return None
        names = {parameter: name for name, parameter in self._model.module.named_parameters()}
        sent = self._state.stats().tensors
        return sum(
            wrong_elements(parameter, gradient, sent[names[parameter]].error_bound)
            for parameter, gradient in gradients.items()
        )

    def _stats(self) -> HookStats:
        return HookStats() if self._state is None else self._state.stats()

    def _iterations(self, steps: int, *, summed: bool = True) -> Iterations:
        """Run and measure `steps` iterations; all workers begin together.

        summed: whether to sum gradients and to call the optimizer.
        """
        batches = [
            tuple(tensor.to(self._device) for tensor in batch) for batch in islice(self._batches, steps)
        ]
        self._synchronize()
        dist.barrier()
        iterations = []
        for batch in batches:
            before = self._stats()
            started = time.perf_counter()
            self._optimizer.zero_grad()
            self._summing = summed
            self._model(*batch).backward()
            self._synchronize()
            computed, computed_cpu = time.perf_counter(), time.thread_time()
            if summed:
                self._optimizer.step()
            self._synchronize()
            ended, ended_cpu = time.perf_counter(), time.thread_time()
            after = self._stats()
            iterations.append(
                {
                    "all": ended - started,
                    "optimizer": ended - computed,
                    "optimizer_cpu": ended_cpu - computed_cpu,
                    "encode": after.encode_s - before.encode_s,  # this and the rest in the summing threads
                    "network": after.network_s - before.network_s,
                    "decode": after.decode_s - before.decode_s,
                }
            )
        return iterations

    def _time_sums_alone(self, steps: int) -> Iterator[float]:
        """Average all recorded buckets at once, `steps` times; yield the seconds of each time."""
        for _ in range(steps):
            buckets = [(buffer.clone(), parameters) for buffer, parameters in self._buckets]
            self._synchronize()
            dist.barrier()
            started = time.perf_counter()
            torch.futures.wait_all([self._average(*bucket) for bucket in buckets])
            self._synchronize()
            yield time.perf_counter() - started
            if self._state is not None:
                self._state.end_step()

    def _synchronize(self) -> None:
        """Wait for the GPU, so that times include its work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _density(gradients: Mapping[torch.Tensor, torch.Tensor], *, union: bool = False) -> float:
    """Return the share of all gradients' elements that are non-zero on this worker; with `union`, on any."""
    count = 0
    for gradient in gradients.values():
        nonzero = (gradient != 0).to(torch.uint8)
        if union:
            dist.all_reduce(nonzero, dist.ReduceOp.MAX)
        count += int(nonzero.count_nonzero())
    return count / max(1, sum(gradient.numel() for gradient in gradients.values()))


def wrong_elements(parameter: torch.Tensor, gradient: torch.Tensor, bound: float) -> int:
    """Count elements of `parameter.grad` that other workers have with other bits, or that exceed `bound`.

    The error is the difference from the average of all workers' `gradient`, in float64. Of workers with
    different bits, the one whose bits are the largest integer does not count the element.
    """
    assert parameter.grad is not None
    bits, total = parameter.grad.view(torch.int32), gradient.double()
    largest = bits.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(total)
    out_of_bounds = (parameter.grad.double() - total / dist.get_world_size()).abs() > bound
    return int((out_of_bounds | (bits != largest)).count_nonzero())


def run(options: WorkerOptions) -> None:
    """Train on each requested backend and print its measurement, until there are no more requests."""
    os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    torch.set_num_threads(1)
    task = make_task(options.model, small=options.small, path=options.path, seed=options.seed)
    dist.init_process_group(
        "gloo", init_method=f"file://{options.store}", rank=options.rank, world_size=options.workers
    )
    print_message(ready=True)
    while paths := (request := receive_from_parent())["paths"]:
        with ExitStack() as stack:
            seat = request["seat"]
            summation = None if seat is None else stack.enter_context(plug_in(seat))
            for path in paths:
                trainer = Trainer(task, options, path, summation, request["switch_pids"])
                print_message(**trainer.measure())
                trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    compile_progress_reporter(child=True)
    with exit_on_errors(AllreduceError, TransportError, HookError, TrainingDataError):
        run(WorkerOptions(**json.loads(sys.argv[1])))

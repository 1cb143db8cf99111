"""Record traces of the models' training, all workers in one process.

All workers have the same parameters, so one model computes their gradients, one worker after the other; the
optimizer gets their average. Buckets are those that DistributedDataParallel makes at first. Times are of
one processor's work, which other programs on the machine hardly change, unlike the wall clock's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice

import torch
import torch.distributed as dist

from peelsum.traces import Recorder, Trace
from peelsum.training.task import Batch, Task

#: DDP's sizes: of the bucket of the model's first parameters, and of the others.
_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 2**20, 25 * 2**20


def record(
    task: Task, workers: int, steps: int, *, seed: int = 0, values: bool = False, tell: Callable[[int], None]
) -> list[Trace]:
    """Train for `steps` steps; return the trace of each worker. `tell` is called after each step.

    `ready_s` is the processor time of one worker's pass, on one thread of torch, with the optimizer of the
    step before. Needs torch with torch.distributed.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _record(task, workers, steps, seed, values, tell)
    finally:
        torch.set_num_threads(threads)


def _record(
    task: Task, workers: int, steps: int, seed: int, values: bool, tell: Callable[[int], None]
) -> list[Trace]:
    recorders = [Recorder(task.name, worker, workers, values=values) for worker in range(workers)]
    batches = [task.batches(worker, workers, seed) for worker in range(workers)]
    optimizer, buckets = task.optimizer(task.model.parameters()), _buckets(task.model)
    parameters = dict(task.model.named_parameters())
    optimizing_s = 0.0
    for step in range(steps):
        sums = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        for recorder, of_worker in zip(recorders, batches, strict=True):
            ready_s = _pass(task, parameters, of_worker)
            for names in buckets:
                used = [name for name in names if parameters[name].grad is not None]
                gradients = [_gradient(parameters[name]) for name in used]
                shapes = [tuple(parameters[name].shape) for name in used]
                arrays = [gradient.numpy() for gradient in gradients]
                last_s = max((ready_s.get(name, 0.0) for name in used), default=0.0)
                recorder.add(used, shapes, arrays, optimizing_s + last_s)
                for name, gradient in zip(used, gradients, strict=True):
                    sums[name] += gradient
            recorder.end_step()
        began = time.process_time()
        for name, parameter in parameters.items():
            parameter.grad = sums[name] / workers
        optimizer.step()
        optimizing_s = time.process_time() - began
        tell(step + 1)
    return [recorder.trace() for recorder in recorders]


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad.detach().float()


def _pass(
    task: Task, parameters: dict[str, torch.nn.Parameter], batches: Iterator[Batch]
) -> dict[str, float]:
    """Run one worker's forward and backward pass; return when each gradient was ready, in seconds."""
    ready_s: dict[str, float] = {}
    handles = []
    (batch,) = islice(batches, 1)
    began = time.process_time()
    for name, parameter in parameters.items():
        parameter.grad = None

        def note(_: torch.Tensor, name: str = name) -> None:
            ready_s[name] = time.process_time() - began

        if parameter.requires_grad:
            handles.append(parameter.register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]
    task.model(*batch).backward()
    for handle in handles:
        handle.remove()
    return ready_s


def _buckets(model: torch.nn.Module) -> list[list[str]]:
    """Return the names of the parameters of each bucket, in the order in which DDP sums them at first."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    tensors: list[torch.Tensor] = [parameter for _, parameter in named]
    limits = [_FIRST_BUCKET_BYTES, _BUCKET_BYTES]
    dense = [False] * len(tensors)
    numbers, _ = dist._compute_bucket_assignment_by_size(tensors, limits, dense)  # type: ignore[attr-defined]
    return [[named[number][0] for number in bucket] for bucket in reversed(numbers)]

"""Record traces of the models' training, all workers in one process.

All workers have the same parameters, so one model computes their gradients, one worker after the other, and
the optimizer gets their average. Buckets are those that DistributedDataParallel starts with. Times are
processor times of one thread, because other programs on the machine hardly change them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice

import torch
import torch.distributed as dist

from peelsum.traces import Trace, TraceRecorder
from peelsum.training.task import Batch, Task, one_thread

#: DDP's sizes: of the bucket of the model's first parameters, and of the others.
_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 2**20, 25 * 2**20


@one_thread()
def record(
    task: Task,
    workers: int,
    steps: int,
    *,
    seed: int = 0,
    values: bool = False,
    on_step: Callable[[int], None],
) -> list[Trace]:
    """Train for `steps` steps; return the trace of each worker.

    A gradient's time in the trace is the processor time of the previous optimizer step and of the worker's
    pass until the gradient was ready, on one thread. on_step: called with the number of finished steps.
    """
    recorders = [TraceRecorder(task.name, worker, workers, values=values) for worker in range(workers)]
    batches = [task.batches(worker, workers, seed) for worker in range(workers)]
    optimizer, buckets = task.optimizer(task.model.parameters()), _buckets(task.model)
    parameters = dict(task.model.named_parameters())
    optimizer_s = 0.0
    for step in range(steps):
        sums = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        for recorder, worker_batches in zip(recorders, batches, strict=True):
            ready_s = _backward(task, parameters, worker_batches)
            for names in buckets:
                ready = {name: parameters[name].grad for name in names}
                gradients = {name: grad.detach().float() for name, grad in ready.items() if grad is not None}
                shapes = [tuple(gradient.shape) for gradient in gradients.values()]
                arrays = [gradient.numpy() for gradient in gradients.values()]
                last_s = max((ready_s.get(name, 0.0) for name in gradients), default=0.0)
                recorder.add(list(gradients), shapes, arrays, optimizer_s + last_s)
                for name, gradient in gradients.items():
                    sums[name] += gradient
            recorder.end_step()
        started = time.process_time()
        for name, parameter in parameters.items():
            parameter.grad = sums[name] / workers
        optimizer.step()
        optimizer_s = time.process_time() - started
        on_step(step + 1)
    return [recorder.trace() for recorder in recorders]


def _backward(
    task: Task, parameters: dict[str, torch.nn.Parameter], batches: Iterator[Batch]
) -> dict[str, float]:
    """Run one worker's forward and backward pass; return the seconds after which each gradient was ready."""
    ready_s: dict[str, float] = {}
    handles = []
    (batch,) = islice(batches, 1)
    started = time.process_time()
    for name, parameter in parameters.items():
        parameter.grad = None

        def record_time(_: torch.Tensor, name: str = name) -> None:
            ready_s[name] = time.process_time() - started

        if parameter.requires_grad:
            handles.append(parameter.register_post_accumulate_grad_hook(record_time))  # type: ignore[no-untyped-call]
    task.model(*batch).backward()
    for handle in handles:
        handle.remove()
    return ready_s


def _buckets(model: torch.nn.Module) -> list[list[str]]:
    """Return the parameter names of DDP's initial buckets, in the order in which DDP sums them."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    tensors: list[torch.Tensor] = [parameter for _, parameter in trained]
    limits = [_FIRST_BUCKET_BYTES, _BUCKET_BYTES]
    is_sparse = [False] * len(tensors)
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits, is_sparse)  # type: ignore[attr-defined]
    return [[trained[index][0] for index in bucket] for bucket in reversed(buckets)]

"""A worker of the demo: train a replica, sum its gradients over the switch, check the sums with gloo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import Queue
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from peelsum.processes import print_message, terminate_with_parent
from peelsum.processes.progress import compile_progress_reporter
from peelsum.processes.user_errors import exit_on_errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from peelsum.allreduce import StepResult

#: The form of sparse gradients: the argument `values` of `Allreduce` and the hook.
SparseForm = Literal["sketch", "compact", "auto"]

WIDTH, LEARNING_RATE = 64, 0.1
#: Tensors whose gradients have non-zero rows only for words of the batch or of the softmax's sample.
SPARSE_TENSORS = ("embedding.weight", "softmax.weight", "bias.weight")
#: Timeout of gloo's connections and sums, longer than the demo's own, whose error names silent workers.
GLOO_TIMEOUT_S = 300.0


class InexactSumError(Exception):
    """The switch's sum differs from gloo's."""


class GlooError(Exception):
    """gloo could not sum: another worker is missing or has ended."""


def command(
    worker_id: Annotated[int, typer.Option()],
    workers: Annotated[int, typer.Option()],
    store: Annotated[str, typer.Option(help="File through which gloo's processes find each other.")],
    steps: Annotated[int, typer.Option()],
    seed: Annotated[int, typer.Option()],
    form: Annotated[SparseForm, typer.Option()],
) -> None:
    """Train as one worker of the demo. `peelsum demo` starts this process, and later sends it its seat."""
    from peelsum.allreduce import AllreduceError
    from peelsum.allreduce.history_loops import warm_up
    from peelsum.transport import TransportError

    messages: Queue[dict[str, Any]] = Queue()
    terminate_with_parent(messages.put)
    compile_progress_reporter(child=True)("")  # a report before PyTorch loads, which takes long
    with exit_on_errors(InexactSumError, GlooError, AllreduceError, TransportError):
        replica = Replica(worker_id, workers, seed)
        if worker_id == 0:
            warm_up()  # the other workers then find the codec compiled
        print_message(prepared=True)
        _train(replica, messages.get(), GlooCheck(store, worker_id, workers), steps, seed, form)


class Replica:
    """One worker's copy of the model, its batches, and its optimizer: an LSTM with a sampled softmax."""

    def __init__(self, worker_id: int, workers: int, seed: int) -> None:
        import torch

        from peelsum.training import lstm

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        task = lstm.make(replace(lstm.SMALL, width=WIDTH), None)
        self.network = task.model
        self._first_batches = partial(task.batches, worker_id, workers, seed)
        self._initial = {name: values.clone() for name, values in self.network.state_dict().items()}

    def restart(self) -> None:
        """Go back to the untrained model and the first batch."""
        self.network.load_state_dict(self._initial)
        self._batches = self._first_batches()
        self._squares = {name: 0 * values for name, values in self._initial.items()}

    def backward(self) -> float:
        """Compute the next batch's gradients; return its loss."""
        self.network.zero_grad()
        loss = self.network(*next(self._batches))
        loss.backward()
        return float(loss.item())

    def gradients(self) -> dict[str, NDArray[np.float32]]:
        """Return the gradients by parameter name, as arrays that share the tensors' memory."""
        parameters = self.network.named_parameters()
        return {name: parameter.grad.numpy() for name, parameter in parameters if parameter.grad is not None}

    def apply(self, result: StepResult) -> None:
        """Take a step of Adagrad along the averaged gradients. Importing torch.optim would take seconds."""
        import torch

        for name, parameter in self.network.named_parameters():
            gradient = torch.from_numpy(result[name].values)
            squares = self._squares[name].addcmul_(gradient, gradient)
            parameter.data.addcdiv_(gradient, squares.sqrt().add_(1e-8), value=-LEARNING_RATE)


def _train(
    replica: Replica, seat: Mapping[str, Any], check: GlooCheck, steps: int, seed: int, form: SparseForm
) -> None:
    """Train with gradients in `form`, then again with dense ones; report every step, and the packets sent."""
    from peelsum.allreduce import Allreduce
    from peelsum.allreduce.history_loops import warm_up
    from peelsum.transport.seats import plug_in

    warm_up()
    tensor_forms = dict.fromkeys(dict(replica.network.named_parameters()), "dense")
    tensor_forms |= dict.fromkeys(SPARSE_TENSORS, "sparse")
    with plug_in(seat) as summation:
        print_message(ready=True)
        trainings: tuple[SparseForm | Literal["dense"], ...] = (form, "dense")
        for training in trainings:
            forms: Any = training if training in ("auto", "dense") else tensor_forms
            values: Any = "auto" if training in ("auto", "dense") else training
            allreduce = Allreduce(summation, forms=forms, values=values, average=True, seed=seed)
            before = summation.stats()
            replica.restart()
            for _ in range(steps):
                loss = replica.backward()
                gradients = replica.gradients()
                check.meet()
                result = allreduce.sum(gradients)
                check.compare(result)
                replica.apply(result)
                print_message(loss=loss, tensors=len(result), **_costs(result))
            after = summation.stats()
            resends = after.resends - before.resends
            print_message(sent_packets=after.contributions - before.contributions + resends, resends=resends)


def _costs(result: StepResult) -> dict[str, Any]:
    """Return a step's density, sketch sizes and times, and the words of its sparse tensors."""
    import numpy as np

    from peelsum.allreduce.costs import lower_bound_bits

    sparse, summary = [tensor for tensor in result.tensors if tensor.index is not None], result.summary
    bits = sum(lower_bound_bits(tensor.elements, int(np.count_nonzero(tensor.total_at))) for tensor in sparse)
    return {
        "density": result.density,
        "elements": summary.elements,
        "candidates": summary.candidates,
        "cells": summary.cells,
        "left_over": summary.unpeeled,
        "sparse_words": sum(tensor.words_sent for tensor in sparse),
        "bound_words": bits / 32,
        "encode_s": result.encode_s,
        "network_s": result.network_s,
        "decode_s": result.decode_s,
    }


class GlooCheck:
    """An independent check: gloo sums the same int32 values over its own connections."""

    def __init__(self, store: str, worker_id: int, workers: int, timeout_s: float = GLOO_TIMEOUT_S) -> None:
        import os
        from datetime import timedelta

        import torch.distributed as dist

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with self._gloo_errors():
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=worker_id,
                world_size=workers,
                timeout=timedelta(seconds=timeout_s),
            )

    def meet(self) -> None:
        """Wait for all workers, so that the next sum's time has no waiting for them. Raises GlooError."""
        import torch.distributed as dist

        with self._gloo_errors():
            dist.barrier()

    def compare(self, result: StepResult) -> None:
        """Compare the step's tensors with gloo's sums.

        Raises InexactSumError naming tensor and element if a sum differs in a bit, GlooError if gloo fails.
        The parent process adds the worker's name.
        """
        import numpy as np
        import torch
        import torch.distributed as dist

        flat = torch.from_numpy(np.concatenate([tensor.quantized.ravel() for tensor in result.tensors]))
        with self._gloo_errors():
            dist.all_reduce(flat)
        ends = np.cumsum([tensor.elements for tensor in result.tensors])
        for tensor, expected in zip(result.tensors, np.split(flat.numpy(), ends[:-1]), strict=True):
            total = tensor.total.ravel()
            wrong = np.flatnonzero(total != expected)
            if wrong.size:
                element = wrong[0]
                raise InexactSumError(
                    f"tensor {tensor.name}, element {element}: "
                    f"the switch summed to {total[element]}, gloo to {expected[element]}"
                )

    @contextmanager
    def _gloo_errors(self) -> Iterator[None]:
        """Turn RuntimeError, as gloo raises it, into GlooError."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise GlooError(f"gloo: {reason}; see which worker is stopped or has ended") from error

"""A worker of the demo: trains its replica, sums gradients over the switch, checks sums with gloo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.topology import end_with_parent, hear, say
from peelsum.topology.telling import told_of_compiling
from peelsum.topology.user_errors import reported

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from peelsum.allreduce import RequestedForm, StepResult
    from peelsum.transport import SwitchSummation

BATCH, LENGTH = 8, 20
LEARNING_RATE = 4e-3
#: The one tensor whose gradient is naturally sparse: a row for each word of the batch.
SPARSE = "embedding.weight"


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
) -> None:
    """Train as one worker of the demo, which `peelsum demo` starts and later sends its seat."""
    from peelsum.allreduce import AllreduceError
    from peelsum.codec import warm_up
    from peelsum.transport import TransportError

    told_of_compiling(child=True)("")  # report before PyTorch loads, which takes long
    with reported(InexactSumError, GlooError, AllreduceError, TransportError):
        replica = Replica(worker_id, workers, seed)
        if worker_id == 0:
            warm_up()  # the other workers then find the codec compiled
        say(prepared=True)
        seat = hear()
        end_with_parent()
        _train(replica, seat, GlooCheck(store, worker_id, workers), steps, seed)


class Replica:
    """One worker's copy of the model, its share of the text, and its optimizer."""

    def __init__(self, worker_id: int, workers: int, seed: int) -> None:
        import torch

        from peelsum.cli.demo import corpus, model

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        text = corpus.load(model.VOCABULARY_SIZE)
        self.network = model.LanguageModel(text.vocabulary_size)
        self._shard = corpus.Shard(text, worker_id, workers, batch=BATCH, length=LENGTH, seed=seed)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=LEARNING_RATE)
        self._loss_of = model.loss_of

    def backward(self) -> float:
        """Compute the next batch's gradients; return its loss."""
        self._optimizer.zero_grad()
        loss = self._loss_of(self.network, *self._shard.next())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def gradients(self) -> dict[str, NDArray[np.float32]]:
        """Return every parameter's gradient by name, sharing memory."""
        named = self.network.named_parameters()
        return {name: parameter.grad.numpy() for name, parameter in named if parameter.grad is not None}

    def apply(self, result: StepResult) -> None:
        """Take a step along the averaged gradients."""
        import torch

        for name, parameter in self.network.named_parameters():
            parameter.grad = torch.from_numpy(result[name].values)
        self._optimizer.step()


def _train(replica: Replica, seat: Mapping[str, Any], check: GlooCheck, steps: int, seed: int) -> None:
    from peelsum.allreduce import Allreduce
    from peelsum.codec import warm_up
    from peelsum.transport.seats import plug_in

    warm_up()
    with plug_in(seat) as summation:
        forms: dict[str, RequestedForm] = dict.fromkeys(dict(replica.network.named_parameters()), "dense")
        forms[SPARSE] = "sparse"
        allreduce = Allreduce(summation, forms=forms, values="compact", average=True, seed=seed)
        say(ready=True)
        for _ in range(steps):
            loss = replica.backward()
            result = allreduce.sum(replica.gradients())
            equal = check.compare(result)
            replica.apply(result)
            say(loss=loss, tensors=len(result), equal=equal, **_costs(result))
    _say_totals(summation)


def _costs(result: StepResult) -> dict[str, Any]:
    return {
        "density": result.density,
        "sparse_density": result[SPARSE].density,
        "elements": sum(tensor.elements for tensor in result.tensors),
        "encode_s": result.encode_s,
        "network_s": result.network_s,
        "decode_s": result.decode_s,
    }


def _say_totals(summation: SwitchSummation) -> None:
    stats = summation.stats()
    say(sent_packets=stats.contributions + stats.resends, resends=stats.resends)


class GlooCheck:
    """An independent check: gloo sums the same int32 values over its own connections."""

    def __init__(self, store: str, worker_id: int, workers: int, timeout_s: float = GLOO_TIMEOUT_S) -> None:
        import os
        from datetime import timedelta

        import torch.distributed as dist

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with self._translated():
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=worker_id,
                world_size=workers,
                timeout=timedelta(seconds=timeout_s),
            )

    def compare(self, result: StepResult) -> int:
        """Compare the step's tensors with gloo's sums; return how many are equal, which is all of them.

        Raises InexactSumError naming tensor and element if a sum differs in a bit, GlooError if gloo fails.
        The parent process adds the worker's name.
        """
        import numpy as np
        import torch
        import torch.distributed as dist

        flat = torch.from_numpy(np.concatenate([tensor.quantized.ravel() for tensor in result.tensors]))
        with self._translated():
            dist.all_reduce(flat)
        expected = np.split(flat.numpy(), np.cumsum([tensor.elements for tensor in result.tensors])[:-1])
        equal = 0
        for tensor, gloo in zip(result.tensors, expected, strict=True):
            ours = tensor.total.ravel()
            wrong = np.flatnonzero(ours != gloo)
            if wrong.size:
                raise InexactSumError(
                    f"tensor {tensor.name}, element {wrong[0]}: "
                    f"the switch summed to {ours[wrong[0]]}, gloo to {gloo[wrong[0]]}"
                )
            equal += 1
        return equal

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise GlooError(f"gloo: {reason}; see which worker is stopped or has ended") from error

"""One worker of the demo: trains its replica, sums gradients by the switch, checks every sum with gloo."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.cli.errors import reported
from peelsum.topology import end_with_parent, say

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from peelsum.allreduce import StepResult
    from peelsum.allreduce.forms import RequestedForm
    from peelsum.cli.demo.corpus import Shard
    from peelsum.cli.demo.model import LanguageModel
    from peelsum.transport import SwitchSummation

BATCH, LENGTH = 8, 20
LEARNING_RATE = 4e-3
#: The one tensor whose gradient is naturally sparse: a row for each word of the batch.
SPARSE = "embedding.weight"


class InexactSumError(Exception):
    """The switch's sum is not gloo's."""


def command(
    seat: Annotated[str, typer.Option(help="Where to plug in, as JSON.")],
    store: Annotated[str, typer.Option(help="File through which gloo's processes find each other.")],
    steps: Annotated[int, typer.Option()],
    seed: Annotated[int, typer.Option()],
) -> None:
    """Train as one worker of the demo; started by `peelsum demo`."""
    end_with_parent()
    plugged = json.loads(seat)
    from peelsum.allreduce import AllreduceError
    from peelsum.transport import TransportError

    with reported(InexactSumError, AllreduceError, TransportError):
        _train(plugged, store, steps, seed)


def _train(seat: Mapping[str, Any], store: str, steps: int, seed: int) -> None:
    import torch

    from peelsum.allreduce import Allreduce
    from peelsum.cli.demo import corpus, model
    from peelsum.codec import warm_up
    from peelsum.topology.seats import plug_in

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    worker_id, workers = seat["worker_id"], seat["admission"]["workers"]
    text = corpus.load(model.VOCABULARY_SIZE)
    network = model.LanguageModel(text.vocabulary_size)
    shard = corpus.Shard(text, worker_id, workers, batch=BATCH, length=LENGTH, seed=seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    warm_up()
    check = GlooCheck(store, worker_id, workers)
    with plug_in(seat) as summation:
        forms: dict[str, RequestedForm] = dict.fromkeys(dict(network.named_parameters()), "dense")
        allreduce = Allreduce(summation, forms={**forms, SPARSE: "compact"}, average=True, seed=seed)
        say(ready=True)
        for _ in range(steps):
            loss = _backward(network, optimizer, shard)
            result = allreduce.sum(gradients_of(network))
            check.compare(result)
            _apply(network, optimizer, result)
            say(loss=loss, checked=len(result), **_costs(result))
    _say_totals(summation)


def _backward(network: LanguageModel, optimizer: torch.optim.Optimizer, shard: Shard) -> float:
    from peelsum.cli.demo.model import loss_of

    optimizer.zero_grad()
    loss = loss_of(network, *shard.next())
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def gradients_of(network: torch.nn.Module) -> dict[str, NDArray[np.float32]]:
    """Every parameter's gradient by name, sharing memory."""
    return {name: p.grad.numpy() for name, p in network.named_parameters() if p.grad is not None}


def _apply(network: LanguageModel, optimizer: torch.optim.Optimizer, result: StepResult) -> None:
    import torch

    for name, parameter in network.named_parameters():
        parameter.grad = torch.from_numpy(result[name].values)
    optimizer.step()


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
    """An independent path: the same int32 values, summed by gloo over its own connections."""

    def __init__(self, store: str, worker_id: int, workers: int) -> None:
        import os

        import torch.distributed as dist

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._worker_id = worker_id
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=worker_id, world_size=workers)

    def compare(self, result: StepResult) -> None:
        """Raise InexactSumError naming worker, tensor and element where a sum differs in a bit."""
        import numpy as np
        import torch
        import torch.distributed as dist

        flat = torch.from_numpy(np.concatenate([tensor.quantized.ravel() for tensor in result.tensors]))
        dist.all_reduce(flat)
        expected = np.split(flat.numpy(), np.cumsum([tensor.elements for tensor in result.tensors])[:-1])
        for tensor, gloo in zip(result.tensors, expected, strict=True):
            ours = tensor.total.ravel()
            wrong = np.flatnonzero(ours != gloo)
            if wrong.size:
                raise InexactSumError(
                    f"worker {self._worker_id}: tensor {tensor.name}, element {wrong[0]}: "
                    f"the switch summed to {ours[wrong[0]]}, gloo to {gloo[wrong[0]]}"
                )

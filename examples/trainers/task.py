"""What the examples of this folder train, with the same seeds: an embedding and a linear layer."""

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from peelsum.torch import HookStats, SwitchAllreduceState

WORDS, WIDTH, CLASSES, LENGTH = 4096, 16, 8, 32
STEPS, RATE = 20, 0.5
#: The switch if the environment names a job, else gloo.
OVER = "switch" if {"PEELSUM_JOB", "PEELSUM_SEAT"} & os.environ.keys() else "gloo"


class Classifier(nn.Module):
    """Classifies texts; `forward` returns the loss. All ranks draw the same parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.linear = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.linear(self.embedding(words).mean(1)), labels)}


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Random words with random labels, a text for each rank and step."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        count = STEPS * int(os.environ["WORLD_SIZE"])
        self.words = torch.randint(WORDS, (count, LENGTH), generator=draw)
        self.labels = torch.randint(CLASSES, (count,), generator=draw)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"words": self.words[index], "labels": self.labels[index]}


def texts() -> DataLoader[dict[str, torch.Tensor]]:
    """Return this rank's texts: of n ranks, rank r trains on every n-th from r on, as trainers deal them."""
    every, rank, ranks = Texts(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return DataLoader(Subset(every, range(rank, len(every), ranks)))


class Trained(NamedTuple):
    """What an example returns."""

    model: nn.Module
    state: SwitchAllreduceState | None
    """None where the process group sums."""
    shown: Mapping[str, Any]
    """The last numbers in the trainer's own log."""


def parameters(model: nn.Module) -> torch.Tensor:
    """Return all parameters, flat; sharded ones are gathered."""
    tensors = [item.full_tensor() if hasattr(item, "full_tensor") else item for item in model.parameters()]
    return torch.cat([tensor.detach().cpu().flatten() for tensor in tensors])


def run(train: Callable[[], Trained]) -> None:
    """Run an example as one of torchrun's ranks, and print a digest of the parameters' bits."""
    trained = train()
    digest = hashlib.sha256(parameters(trained.model).numpy().tobytes()).hexdigest()[:16]
    if dist.get_rank() == 0:
        print(f"parameters: {digest}", flush=True)
    if trained.state:
        if dist.get_rank() == 0:
            print(trained.state.stats().since(HookStats()), flush=True)
        trained.state.close()
    dist.destroy_process_group()

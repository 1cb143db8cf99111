"""Trains a small DLRM whose tables have sparse gradients, on generated clicks. No rank sends a whole table.

torchrun --nproc-per-node 2 examples/train_dlrm.py                   # over gloo, with the same bits
PEELSUM_JOB=//127.0.0.1:9560 torchrun --nproc-per-node 2 examples/train_dlrm.py     # the switch

The clicks are generated: rows of every table by a power law, and each label by a hidden weight of its rows
and dense features. So the model can learn them; they say nothing about real users.
"""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from peelsum.torch import HookStats, SwitchAllreduceState, hook

FEATURES, WIDTH, POWER = 8, 16, 1.05
#: The switch if the environment names a job, else gloo.
OVER = "switch" if {"PEELSUM_JOB", "PEELSUM_SEAT"} & os.environ.keys() else "gloo"


class DLRM(nn.Module):
    """Sparse tables and dense layers, with the products of all pairs between them (Naumov et al., 2019)."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, WIDTH, mode="sum", sparse=True) for n in rows)
        self.bottom = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, WIDTH), nn.ReLU())
        vectors = len(rows) + 1
        self.top = nn.Sequential(
            nn.Linear(WIDTH + vectors * (vectors - 1) // 2, 32), nn.ReLU(), nn.Linear(32, 1)
        )
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1))

    def forward(self, features: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(features)
        vectors = [dense, *(table(rows[:, None]) for table, rows in zip(self.tables, clicked, strict=True))]
        stacked = torch.stack(vectors, 1)
        products = (stacked @ stacked.mT)[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], 1)).squeeze(1)


def batch(rows: list[int], size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features float[size, FEATURES], rows int[tables, size] and labels float[size], all generated."""
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn((size, FEATURES), generator=draw)
    uniform = torch.rand((len(rows), size), generator=draw, dtype=torch.float64)
    tail = torch.tensor(rows, dtype=torch.float64)[:, None] ** (1 - POWER)
    clicked = ((1 - uniform * (1 - tail)) ** (1 / (1 - POWER)) - 1).long()  # the inverse of the distribution
    weights = torch.sin(clicked * 12.9898).sum(0)  # the hidden weight of a row, between -1 and 1
    return features, clicked, torch.bernoulli((weights + features[:, 0]).sigmoid(), generator=draw)


def train(rows: list[int], steps: int, size: int) -> tuple[list[float], DLRM, HookStats]:
    """Train with all ranks; return this rank's losses, the model and the statistics of its sums."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DLRM(rows)
    ddp = DistributedDataParallel(model)
    state = SwitchAllreduceState(over=OVER, names=model.named_parameters())
    ddp.register_comm_hook(state, hook)
    dense = [*model.bottom.parameters(), *model.top.parameters()]
    optimizers = [
        torch.optim.SparseAdam(list(model.tables.parameters()), lr=0.01),
        torch.optim.Adam(dense, lr=0.001),
    ]
    losses = []
    for step in range(steps):
        features, clicked, labels = batch(rows, size, 1 + step * ranks + rank)
        loss = nn.functional.binary_cross_entropy_with_logits(ddp(features, clicked), labels)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    stats = state.stats()
    state.close()
    return losses, model, stats


def main() -> None:
    """Train, and print the losses, a digest of the parameters and the statistics."""
    parser = argparse.ArgumentParser(description="Train a DLRM with sparse tables.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000, 100], help="of each table")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=256, help="samples of each rank")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    losses, model, stats = train(options.rows, options.steps, options.batch)
    bits = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in model.parameters()))
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.4f} -> {sum(losses[-10:]) / len(losses[-10:]):.4f}", flush=True)
        print(f"parameters: {bits.hexdigest()[:16]}")
        print(stats.since(HookStats()))
        print(f"table 0: {100 * stats.tensors['tables.0.weight'].density:.4f}% of the rows in the last step")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

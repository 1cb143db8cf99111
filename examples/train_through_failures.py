"""Train one rank of a small model by DDP, in a run that goes on when ranks are killed, and others enter.

Ranks are started apart, with PEELSUM_JOB and torch's environment variables; `--enter` needs the first only.
docs/how-to/train-through-failures.md has the commands.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from peelsum.torch import SwitchAllreduceState, hook

ELEMENTS, BATCH = 64, 32


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a rank's inputs and targets in a step: the sign of the sum of each input's elements."""
    inputs = torch.randn(BATCH, ELEMENTS, generator=torch.Generator().manual_seed(1000 * step + rank))
    return inputs, inputs.sum(1, keepdim=True).sign()


def order_buckets(ddp: DistributedDataParallel) -> None:
    """Let DDP order its buckets, which it does after its first backward pass, by its own process group.

    From then on it does not use that group. A rank that enters then has the same buckets as the others.
    """
    for _ in range(2):
        ddp(torch.zeros(BATCH, ELEMENTS)).sum().backward()
    ddp.zero_grad()


def main() -> None:
    """Train, and print the members, the loss and the rank's digest of the parameters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-s", type=float, default=0.02, help="seconds that a step takes at least")
    parser.add_argument("--enter", action="store_true", help="enter a run in which a rank was lost")
    options = parser.parse_args()
    if options.enter:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(ELEMENTS, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    ddp = DistributedDataParallel(model)  # a model with buffers needs broadcast_buffers=False
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    order_buckets(ddp)
    state = SwitchAllreduceState(
        names=model.named_parameters(),
        on_lost="continue",
        enters=options.enter,
        shared={"model": model, "optimizer": optimizer},
    )
    ddp.register_comm_hook(state, hook)
    state.connect()
    print(f"rank {state.rank}, process {os.getpid()}: begins at step {state.steps}", flush=True)
    while state.steps < options.steps:
        inputs, targets = batch(state.steps, state.rank)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(ddp(inputs), targets)
        loss.backward()
        optimizer.step()
        if state.steps % 50 == 0 and state.rank == state.members[0]:
            print(f"step {state.steps}: ranks {state.members}, loss {loss.item():.3f}", flush=True)
        time.sleep(options.step_s)
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"rank {state.rank}: ends with parameters of sum {total:.9f}", flush=True)
    state.close()


if __name__ == "__main__":
    main()

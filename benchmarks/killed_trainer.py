"""A rank that trains a small classifier of scikit-learn's digits by DDP, and is killed at some time.

This is the program of `benchmarks.experiments.kills`. With `--checkpoint`, it sums by gloo, and begins at the
last checkpoint; with `--torchft`, it is a replica of torchft, which sums by gloo. Otherwise it sums over the
switch, in a run that goes on when ranks are lost. It prints its process id, and the lowest rank the loss of
all images from time to time, each as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not exported, but documented
from torch.nn.parallel import DistributedDataParallel

from peelsum.torch import SwitchAllreduceState, hook, init_process_group

BATCH, REPORT_S = 8, 0.2


def tell(**message: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps(message), flush=True)


def torchft_manager(store: Any, ready: Path, replicas: int, shared: dict[str, Any]) -> Any:
    """Return torchft's manager of this replica, once all have made theirs, or in place of one that has.

    store: must live as long as the manager. ready: a folder in which each replica makes a file.
    """
    from torchft import Manager, ProcessGroupGloo

    def load(values: Any) -> None:
        for name, item in shared.items():
            item.load_state_dict(values[name])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),  # by default it waits for 60 s
        load_state_dict=load,
        state_dict=lambda: {name: item.state_dict() for name, item in shared.items()},
        min_replica_size=1,
        use_async_quorum=False,
        replica_id=f"replica_{os.environ['REPLICA']}",
        hostname="127.0.0.1",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    (ready / os.environ["REPLICA"]).touch()
    while len(list(ready.iterdir())) < replicas:
        time.sleep(0.05)
    return manager


def main() -> None:
    """Train until the parent ends this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--step-s", type=float, default=0.02, help="seconds that a step takes at least")
    parser.add_argument("--enter", action="store_true")
    parser.add_argument("--torchft", type=Path, help="a folder in which each replica makes a file")
    parser.add_argument("--replicas", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.enter or options.torchft:
        store = dist.HashStore()  # type: ignore[attr-defined]  # not exported, but documented
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    else:
        init_process_group("gloo")
    torch.manual_seed(0)
    images, digits = map(torch.from_numpy, load_digits(return_X_y=True))
    images = images.float() / 16
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    loss_of = torch.nn.functional.cross_entropy
    ddp: Any = DistributedDataParallel(model)
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(2):  # DDP orders its buckets after the first
        ddp(images[:BATCH]).sum().backward()
    ddp.zero_grad()
    state, manager, step = None, None, 0
    shared: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if options.torchft is not None:
        import torchft

        from peelsum.torch.torchft import DistributedDataParallel as ManagedModule

        own_store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        manager = torchft_manager(own_store, options.torchft, options.replicas, shared)
        ddp, optimizer = ManagedModule(manager, model), torchft.Optimizer(manager, optimizer)
    elif options.checkpoint is None:
        named = model.named_parameters()
        state = SwitchAllreduceState(names=named, on_lost="continue", enters=options.enter, shared=shared)
        ddp.register_comm_hook(state, hook)
        state.connect()
    elif options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    rank = dist.get_rank() if state is None else state.rank or 0
    rank = rank if manager is None else int(os.environ["REPLICA"])
    tell(rank=rank, process=os.getpid())
    reported_at = 0.0
    while True:
        ends_at = time.monotonic() + options.step_s
        step = step if state is None else state.steps
        chosen = torch.Generator().manual_seed(1000 * step + rank)
        batch = torch.randint(len(images), (BATCH,), generator=chosen)
        optimizer.zero_grad()
        loss_of(ddp(images[batch]), digits[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        lowest = rank == (0 if state is None else state.members[0])
        if manager is not None:
            step = manager.current_step() - 1
            lowest = manager.participating_rank() == 0 and step >= 0
        if lowest and time.monotonic() >= reported_at:
            with torch.no_grad():
                tell(time=time.monotonic(), step=step, loss=loss_of(model(images), digits).item())
            reported_at = time.monotonic() + REPORT_S
        step += 1
        if options.checkpoint and rank == 0 and step % options.every == 0:
            written = options.checkpoint.with_suffix(".new")
            values = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(values, written)
            written.rename(options.checkpoint)
        time.sleep(max(0.0, ends_at - time.monotonic()))


if __name__ == "__main__":
    main()

"""The training loop of the examples, with ranks from the environment.

`--sum switch` adds a communication hook to DistributedDataParallel; nothing else changes.
"""

import argparse
import hashlib
import json
import os
from itertools import islice

import torch
import torch.distributed as dist
from checkpoints import Checkpoints
from torch.nn.parallel import DistributedDataParallel

from peelsum.allreduce import AllreduceError
from peelsum.torch import HookError, HookStats, SwitchAllreduceState, hook, init_process_group
from peelsum.training import DATA, ModelName, TrainingDataError, make_task
from peelsum.transport import TransportError, job_config


def main(model: ModelName, arguments: list[str] | None = None) -> list[float]:
    """Train, and print progress; return this rank's losses, step by step."""
    options = _options(model, arguments)
    try:
        return _train(model, options, *_place(options.sum))
    except (HookError, AllreduceError, TransportError, TrainingDataError) as error:
        raise SystemExit(f"rank {os.environ.get('RANK', 0)}: {type(error).__name__}: {error}") from None


def _train(model: ModelName, options: argparse.Namespace, rank: int, workers: int) -> list[float]:
    torch.set_num_threads(1)  # of each rank
    device = _device(options.device)
    task = make_task(model, small=not options.full, path=options.data, seed=options.seed)
    torch.manual_seed(options.seed + 1 + rank)  # dropout differs between ranks
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in task.model.parameters())
        ranks = "1 rank" if workers == 1 else f"{workers} ranks"
        print(f"{model}, {parameters:,} parameters, on {task.data}; {ranks}", flush=True)
    network, state = task.model.to(device), None
    if options.sum != "none":
        init_process_group("gloo")  # unlike torch's own, it also works after torchrun restarts ranks
        network = DistributedDataParallel(task.model)
    if options.sum == "switch":
        over = f"switch:{options.job}" if options.job else "switch"
        place = "gpu" if device.type == "cuda" else "cpu"  # encode where the gradients are
        names = task.model.named_parameters()
        state = SwitchAllreduceState(over=over, names=names, implementation=place)
        network.register_comm_hook(state, hook)
    optimizer = task.optimizer(task.model.parameters())
    checkpoints = Checkpoints(options.checkpoint, rank, task.model, optimizer, state)
    losses, begin = [], checkpoints.restore()
    batches = islice(task.batches(rank, workers, options.seed), begin, options.steps)
    for step, batch in enumerate(batches, begin + 1):
        losses.append(_step(network, optimizer, tuple(tensor.to(device) for tensor in batch)))
        is_shown = step % options.every == 0 or step == options.steps
        if is_shown:
            checkpoints.save(step)
        if rank == 0 and (is_shown or step == begin + 1):  # the first shows that it has begun
            print(f"step {step}: loss {losses[-1]:.4f}", flush=True)
    if rank == 0:
        print(f"parameters: {digest(task.model)}", flush=True)
        if state is not None:
            print(_report(state.stats()), flush=True)
    if options.sum != "none":
        if state is not None:
            state.close()
        dist.barrier()  # gloo aborts a rank that leaves while another still waits for it
        dist.destroy_process_group()
    return losses


def digest(model: torch.nn.Module) -> str:
    """Return a hash of the parameters' bits, to compare two runs."""
    numbers = hashlib.sha256()
    for parameter in model.parameters():
        numbers.update(parameter.detach().cpu().numpy().tobytes())
    return numbers.hexdigest()[:16]


def _step(
    network: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...]
) -> float:
    optimizer.zero_grad()
    loss = network(*batch)
    loss.backward()
    optimizer.step()
    return loss.item()


def _report(stats: HookStats) -> str:
    times = (stats.encode_s, stats.network_s, stats.decode_s, stats.wait_s)
    encode, network, decode, wait = (1e3 * seconds / max(stats.steps, 1) for seconds in times)
    sent_mb = stats.wire_bytes / max(stats.steps, 1) / 1e6
    return (
        f"switch: {sent_mb:.2f} MB a step, {stats.saving:.1f} times less "
        f"than dense; {encode:.1f} ms encoding, {network:.1f} summing, {decode:.1f} decoding, of which the "
        f"training waited for {wait:.1f}"
    )


def _place(way: str) -> tuple[int, int]:
    """Return rank and number of workers: from torchrun's environment or, with `peelsum exec`, the seat."""
    seat = json.loads(os.environ.get("PEELSUM_SEAT", "{}"))
    if way != "none" and seat and "RANK" not in os.environ:
        workers = job_config(seat["admission"]).worker_ids
        place = {"RANK": workers.index(seat["worker_id"]), "WORLD_SIZE": len(workers)}
        os.environ |= {name: str(number) for name, number in place.items()}
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
    if way != "none" and "RANK" not in os.environ:
        raise SystemExit(f"--sum {way}: no ranks; start them with torchrun or peelsum exec")
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def _device(name: str) -> torch.device:
    """Return the device to train on; ranks of a machine take its GPUs in turn, and may share them."""
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SystemExit(
            f"--device: 'cuda' is not available, as torch {torch.__version__} finds no GPU; use cpu, or "
            "install torch's CUDA build on a machine with an NVIDIA GPU"
        )
    local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", 0)))
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _options(model: ModelName, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=f"Train {model}.")
    job = "PEELSUM_JOB" in os.environ or "PEELSUM_SEAT" in os.environ
    usual = "switch" if job else "gloo" if "WORLD_SIZE" in os.environ else "none"
    parser.add_argument(
        "--sum",
        choices=("switch", "gloo", "none"),
        default=usual,
        help="default: switch if the environment names a job, else gloo for several ranks",
    )
    parser.add_argument("--job", metavar="FILE@HOST:PORT", help="job's admission and rank 0's switch port")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--every", type=int, default=10, help="steps between two lines of output, and between checkpoints"
    )
    parser.add_argument(
        "--checkpoint", metavar="FOLDER", help="save checkpoints there, and continue from them"
    )
    parser.add_argument("--full", action="store_true", help="the published size instead of a small one")
    parser.add_argument(
        "--data", metavar="PATH", help=f"{DATA[model]}; by default data that needs no download"
    )
    parser.add_argument("--seed", type=int, default=0, help="of parameters and batches")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: train and encode on a GPU"
    )
    return parser.parse_args(arguments)

"""One worker of `peelsum bench plan`: runs collectives of torch.distributed, timed on a common clock.

The catalogue's `plan` runs it as a separate process. All workers begin a collective at the same
time of the machine's clock, so that no barrier adds latency to what is measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from peelsum.topology import hear, say
from peelsum.topology.processes import die_with_parent
from peelsum.torch.reductions import all_reduce_tree

#: A tensor int32[words], whose values tell a wrong sum.
_SMALL = 1 << 20


def _point_to_point(tensor: torch.Tensor) -> None:
    """Send from the first worker to the second; the others do nothing."""
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    elif dist.get_rank() == 1:
        dist.recv(tensor, 0)


def _all_gather(tensor: torch.Tensor) -> None:
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor)
    tensor.copy_(torch.stack(gathered).sum(0))


def _ar_top_k(reduce: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
    """Broadcast as many positions as there are values, then sum the values."""
    dist.broadcast(torch.arange(len(tensor), dtype=torch.int32), 0)
    reduce(tensor)


def _ring(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def _broadcast(tensor: torch.Tensor) -> None:
    dist.broadcast(tensor, 0)


COLLECTIVES: dict[str, Callable[[torch.Tensor], None]] = {
    "send": _point_to_point,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_reduce_ring": _ring,
    "all_reduce_tree": all_reduce_tree,
    "ar_top_k_ring": lambda tensor: _ar_top_k(_ring, tensor),
    "ar_top_k_tree": lambda tensor: _ar_top_k(all_reduce_tree, tensor),
}
#: Those after which every worker has the sum of all.
SUMS = frozenset(COLLECTIVES) - {"send", "broadcast"}


def timed(name: str, words: int, at: float) -> tuple[float, int]:
    """Run a collective of int32[words] at a time of the clock; return when it ended, and wrong elements."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    base = torch.arange(words, dtype=torch.int32) % _SMALL
    tensor = base + rank
    while time.monotonic() < at:
        time.sleep(max(at - time.monotonic() - 1e-3, 0))
    COLLECTIVES[name](tensor)
    ended = time.monotonic()
    wanted = workers * base + workers * (workers - 1) // 2 if name in SUMS else None
    return ended, 0 if wanted is None else int((tensor != wanted).count_nonzero())


def main() -> None:
    """Run the process; its argument is a JSON object {rank, workers, store, interface}."""
    die_with_parent()  # also within a collective that will never end
    job = json.loads(sys.argv[1])
    os.environ["GLOO_SOCKET_IFNAME"] = job["interface"]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{job['store']}", rank=job["rank"], world_size=job["workers"]
    )
    say(ready=True)
    while asked := hear():
        ended, wrong = timed(asked["name"], asked["words"], asked["at"])
        say(ended=ended, wrong=wrong)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

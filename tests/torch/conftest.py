"""A rank alone, and ranks of the `peelsum` backend as threads of one process, at seats without a switch."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.util import find_spec

import pytest
from patience import PATIENCE_S

from peelsum.allreduce import LocalSummation

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
RANKS = 3


class Seat(LocalSummation):
    """A worker's seat, which counts its sums; they wait while `go` is cleared."""

    def __init__(self, hub, worker_id):
        super().__init__(hub, worker_id)
        self.sums, self.go, self.closed = 0, threading.Event(), threading.Event()
        self.go.set()

    def sum_words(self, parts):
        assert self.go.wait(PATIENCE_S)
        self.sums += 1
        return super().sum_words(parts)

    def close(self):
        self.closed.set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture(scope="module")
def alone():
    """This process as the only rank of torch.distributed."""
    from torch_alone import group_of_one

    with group_of_one():
        yield


@pytest.fixture
def seat(monkeypatch):
    """The seat at which the only rank of a group sits down."""
    from peelsum.torch import process_group

    (made,) = Seat.group(1)
    monkeypatch.setattr(process_group, "connect_rank", lambda *_: made)
    return made


@pytest.fixture
def ranks(monkeypatch):
    """Return what work(group) returns on each rank, a thread here, and how often each used the switch."""
    from torch.distributed import HashStore

    from peelsum.torch import SwitchProcessGroup, process_group

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def run(work, options=None):
        seats, store = Seat.group(RANKS), HashStore()
        monkeypatch.setattr(process_group, "connect_rank", lambda _, rank, *__: seats[rank])

        def one(rank):
            group = SwitchProcessGroup(store, rank, RANKS, timedelta(seconds=PATIENCE_S), options)
            try:
                return work(group)
            finally:
                group.barrier().wait()
                group.shutdown()

        with ThreadPoolExecutor(RANKS) as pool:
            return list(pool.map(one, range(RANKS))), seats[0].sums - 1

    return run


def bits(tensor):
    """The bytes of a tensor; of a sparse one, which must be coalesced, with its indices."""
    import torch

    if tensor.is_sparse:
        assert tensor.is_coalesced()
        return [tensor.indices().tolist(), bits(tensor.values())]
    return tensor.reshape(-1).view(torch.uint8).tolist()


@pytest.fixture
def all_reduced(ranks):
    """Return tensors after a reduction of one of each rank, the same bits on all, and a seat's sums."""
    import torch.distributed as dist

    def of(cases, op=dist.ReduceOp.SUM, options=None):
        def work(group):
            opts, tensors = dist.AllreduceOptions(), [given[group.rank()].clone() for given in cases]
            opts.reduceOp = op
            for tensor in tensors:
                work = group.allreduce([tensor], opts)
                work.wait()
                assert not tensor.is_sparse or work.result()[0] is tensor
            return tensors

        results, sums = ranks(work, options)
        for several in zip(*results, strict=True):
            assert all(bits(one) == bits(several[0]) for one in several)
        return results[0], sums

    return of


@pytest.fixture
def reduced(all_reduced):
    """Return the tensor after a reduction of one of each rank, and a seat's sums."""

    def of(given, *arguments, **options):
        (result,), sums = all_reduced([given], *arguments, **options)
        return result, sums

    return of

"""The ranks' part in tests of reduce-scatter, all-gather and broadcast, and of training in shards by them."""

from collections import Counter

import numpy as np
import sums_of_floats
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch_ranks import die, error_of
from torch_training import Text, descend, model, step_loss

from peelsum.torch.tensor_sums import TensorSums


def in_pieces(rank):
    """What reduce-scatter, all-gather and broadcast of each form come to, as lists."""
    world = dist.get_world_size()
    made = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8):
        given = (torch.arange(world * 900) * (rank + 1) % 7).to(dtype)
        part = torch.full((900,), 99, dtype=dtype)
        dist.reduce_scatter_tensor(part, given)
        made[f"scattered {dtype}"] = part.tolist()
        work = dist.all_gather_into_tensor(given, part, async_op=True)
        work.wait()
        made[f"gathered {dtype}"] = given.tolist()
    part = torch.zeros(3, 5)
    dist.reduce_scatter(part, [torch.full((3, 5), float(one + rank)) for one in range(world)])
    made["scattered list"] = part.tolist()
    part = torch.zeros(world, 400)
    dist.reduce_scatter_tensor(part[0], torch.full((400 * world,), rank + 1.0), op=dist.ReduceOp.AVG)
    made["averaged"] = part.tolist()
    everybody = [torch.zeros(2, 2, dtype=torch.bool) for _ in range(world)]
    dist.all_gather(everybody, torch.tensor([[rank == 0, True], [False, rank == 1]]))
    made["gathered list"] = torch.stack(everybody).tolist()
    whole = torch.zeros(world * 3, dtype=torch.complex64)
    dist.all_gather_into_tensor(whole, torch.full((3,), rank + 1j * rank, dtype=torch.complex64))
    made["gathered complex"] = [str(one) for one in whole.tolist()]
    functional = all_gather_tensor(torch.full((2, 3), float(rank)), 0, dist.group.WORLD)
    made["functional"] = functional.tolist()
    scattered = reduce_scatter_tensor(torch.ones(world * 2), "sum", 0, dist.group.WORLD)
    made["functional scatter"] = scattered.tolist()
    sent = torch.arange(5000) * (rank + 1)
    dist.broadcast(sent, world - 1)
    made["broadcast"] = sent.tolist()
    dist.all_gather_into_tensor(torch.zeros(0), torch.zeros(0))
    return made


def sharded_by_torch(rank, steps, dims, last=None):
    """This rank's shards after steps of FSDP2, or of HSDP, whose calls go to the process group.

    The rank `last` is killed in its second step.
    """
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(7)
    names = ("replicate", "shard")[-len(dims) :]
    text = fully_shard(Text(), mesh=init_device_mesh("cpu", dims, mesh_dim_names=names))

    def losses():
        for step in range(steps):
            loss = step_loss(text, rank, step)
            if step and rank == last:
                die()
            yield loss

    return descend(text, None, losses())


def dies_in_shards(rank, dims):
    """Rank 3 is killed. Of the others: the error's name and message, and the seconds until it was raised."""
    return error_of(lambda: sharded_by_torch(rank, 4, dims, last=3))


def by_zero(rank, steps):
    """The parameters after steps of DDP whose optimizer's state is spread over the ranks (ZeRO-1)."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ddp = model()
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    return descend(ddp, None, (step_loss(ddp, rank, step) for step in range(steps)), optimizer=optimizer)


def recorded_in_shards(rank, steps, dims):
    """Every 10th sum of `sharded_by_torch`."""
    made = recorded(10)
    sharded_by_torch(rank, steps, dims)
    dist.destroy_process_group()
    return made


def recorded(every):
    """Return a list that gets every `every`-th sum of the process group from now on."""
    made = []
    calls = Counter()

    def recording(kind, method):
        def call(self, tensor, reduction):
            self._precise_up_to = 0
            before = tensor.numpy().reshape(-1).copy()
            result = method(self, tensor, reduction)
            seat = self._summation.backend
            if calls[kind, seat.config.job_id] % every == 0:
                floats = (before, result.numpy().reshape(-1).copy())
                made.append((f"{kind} {reduction.op.name}", seat.config.job_id, seat.worker_id, *floats))
            calls[kind, seat.config.job_id] += 1
            return result

        return call

    for kind in ("reduce_scatter", "reduce"):
        setattr(TensorSums, kind, recording(kind, getattr(TensorSums, kind)))
    return made


def check_recorded(told):
    """Check all ranks' records; return how many sums of each job were checked."""
    jobs = {}
    for kind, job, worker, *floats in (call for rank in told for call in rank):
        jobs.setdefault(job, {}).setdefault(worker, []).append((kind, *floats))
    checked = {}
    for job, workers in jobs.items():
        calls = list(zip(*(workers[worker] for worker in range(len(workers))), strict=True))
        for call in calls:
            check_pieces(call) if call[0][0].startswith("reduce_scatter") else check_wholes(call)
        checked[job] = len(calls)
    return checked


def check_pieces(call):
    """Require an independent computation's bits in each worker's piece."""
    for mine, (kind, _, result) in enumerate(call):
        given = [np.split(one, len(call))[mine] for _, one, _ in call]
        expected = np.zeros(len(result), np.float32)
        if any(one.any() for one in given):
            expected = sums_of_floats.expected(given, 32, len(call) if kind.endswith("AVG") else 1).values
        np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


def check_wholes(call):
    """Require the same bits of all, near the sum; its scales may be those of earlier steps."""
    kinds, given, results = zip(*call, strict=True)
    exact = np.sum(given, axis=0, dtype=np.float64) / (len(call) if kinds[0].endswith("AVG") else 1)
    for result in results:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))
        np.testing.assert_allclose(result, exact, rtol=1e-6, atol=np.abs(given).max() * 2.0**-20)

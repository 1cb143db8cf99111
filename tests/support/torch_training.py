"""The ranks' part in tests of the hook: small models, trained on data that each rank draws for itself."""

import atexit
import json
import logging
import threading
import time
from datetime import timedelta
from logging.handlers import BufferingHandler
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import die, error_of

from peelsum.allreduce import NetworkModel, Part
from peelsum.torch import (
    ProcessGroupSummation,
    SwitchAllreduceState,
    buckets,
    fsdp_hook,
    fsdp_reduce_scatter,
    hook,
    starts,
)

WORDS, WIDTH = 64, 8


class Text(nn.Module):
    """An embedding, whose gradient is sparse, then dense layers."""

    def __init__(self, sparse=False):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.softmax = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        return self.softmax(torch.tanh(self.hidden(self.embedding(words).mean(1))))


def batch(rank, step):
    """Words and what follows, by rank and step."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    words = torch.randint(0, WORDS, (4, 5), generator=generator)
    return words[:, :4], words[:, 4]


def model(*, device="cpu", sparse=False, **options):
    """The same at first on all ranks, in several buckets."""
    torch.manual_seed(7)
    return DistributedDataParallel(Text(sparse).to(device), bucket_cap_mb=0.002, **options)


def store_of_all():
    """Return the store that all ranks share."""
    return dist.group.WORLD.get_group_store()


def hooked(ddp=None, **settings):
    """Return a module under DDP, by default a new `model`, with the hook, and the state of these settings."""
    ddp = ddp or model()
    state = SwitchAllreduceState(**{"over": "gloo", "names": ddp.module.named_parameters()} | settings)
    ddp.register_comm_hook(state, hook)
    return ddp, state


def step_loss(ddp, rank, step):
    device = next(iter(ddp.parameters())).device
    words, following = (tensor.to(device) for tensor in batch(rank, step))
    return nn.functional.cross_entropy(ddp(words), following)


def parameters(module):
    """All parameters, or this rank's shards of them, flat: float32[n]."""
    local = [
        parameter.to_local() if hasattr(parameter, "to_local") else parameter
        for parameter in module.parameters()
    ]
    return np.concatenate([parameter.detach().cpu().numpy().ravel() for parameter in local])


def descend(module, state, losses, *, wrapped=hook, optimizer=None):
    """Parameters after a step down each loss, which is computed when it is its turn.

    Gradients are averaged by the hook with `state`; None leaves the module as it is.
    """
    if state is not None:
        module.register_comm_hook(state, wrapped)
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=0.5)
    for loss in losses:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters(module)


def train(rank, steps, state, *, wrapped=hook, **options):
    """Parameters after `steps` of SGD, their gradients averaged by the hook, or by DDP without a state."""
    ddp = model(**options)
    losses = (step_loss(ddp, rank, step) for step in range(steps))
    return descend(ddp, state, losses, wrapped=wrapped)


def by_hook(rank, steps, settings, options):
    """`train` with a state of these settings."""
    return train(rank, steps, SwitchAllreduceState(**settings), **options)


def in_order(rank, steps, settings, order):
    """`by_hook`; each rank begins to connect after the one before it in `order`."""
    store, place, begun = store_of_all(), order.index(rank), []

    def in_turn(state, bucket):
        if not begun:
            if place:
                store.wait([f"begun {order[place - 1]}"])
            begun.append(True)
            store.set(f"begun {rank}", "")
        return hook(state, bucket)

    return train(rank, steps, SwitchAllreduceState(**settings), wrapped=in_turn)


def averages(rank, settings, device):
    """Return the hook's input and output for each gradient of a few steps: [(before, after), ...]."""
    seen = []

    def watching(state, bucket):
        before = bucket.buffer().cpu().clone().numpy()
        lengths = [parameter.numel() for parameter in bucket.parameters()]
        future = hook(state, bucket)
        seen.append((before, future.then(lambda done: done.value().cpu().clone().numpy()), lengths))
        return future

    train(rank, 3, SwitchAllreduceState(**settings), wrapped=watching, device=device)
    pairs = []
    for before, after, lengths in seen:
        ends = np.cumsum(lengths)[:-1]
        parts = zip(np.split(before, ends), np.split(after.wait(), ends), strict=True)
        pairs += map(list, parts)
    return pairs


def accumulated(rank, settings):
    """Parameters after two steps of three micro-batches each, of which the last is summed with the others."""
    ddp = model()

    def losses():
        for step in (0, 3):
            with ddp.no_sync():
                step_loss(ddp, rank, step).backward()
                step_loss(ddp, rank, step + 1).backward()
            yield step_loss(ddp, rank, step + 2)

    return descend(ddp, settings and SwitchAllreduceState(**settings), losses())


def halved(rank, settings):
    """`train` with gradients that are sent as float16."""
    return train(rank, 4, SwitchAllreduceState(**settings), wrapped=fp16_compress_wrapper(hook))


def two_modules(rank, settings):
    """Two modules, one state: their parameters after three steps, and those of each trained alone by DDP."""
    state = SwitchAllreduceState(**settings)
    both = [model(), model()]
    for ddp in both:
        ddp.register_comm_hook(state, hook)
    losses = (step_loss(both[0], rank, step) + step_loss(both[1], rank, step) for step in range(3))
    descend(nn.ModuleList(both), None, losses)
    return [parameters(ddp) for ddp in both]


def scaled(rank, settings):
    """Whether parameters moved, and the scale after, in steps of which rank 1's second one overflows."""
    ddp, _ = hooked(**settings)
    optimizer, scaler = torch.optim.SGD(ddp.parameters(), lr=0.5), torch.amp.GradScaler("cpu")
    outcome = []
    for step in range(3):
        optimizer.zero_grad()
        before = parameters(ddp)
        loss = step_loss(ddp, rank, step) * (float("inf") if (rank, step) == (1, 1) else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        outcome.append((not np.array_equal(before, parameters(ddp)), scaler.get_scale()))
    return outcome


def branches(rank, settings):
    """Parameters of a module of which each rank uses a part only, another one in each step."""
    torch.manual_seed(7)
    ddp = DistributedDataParallel(Branches(), find_unused_parameters=True, bucket_cap_mb=0.0001)
    losses = (ddp(torch.full((2, 4), float(rank + 1)), (rank + step) % 3) for step in range(4))
    return descend(ddp, settings and SwitchAllreduceState(**settings), losses)


class Branches(nn.Module):
    """Three layers, of which a call uses one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, values, which):
        return self.layers[which](values).square().sum()


def counted(rank, settings):
    """The statistics of four steps, by the parameters' own names, and how many parameters there are."""
    ddp, state = hooked(**settings)
    for step in range(4):
        ddp.zero_grad()
        step_loss(ddp, rank, step).backward()
    return state.stats(), len(list(ddp.parameters()))


def dies(rank, last, settings):
    """Train; rank `last` ends in its second backward pass. Return the others' errors and their delays."""
    ddp = model()
    state = SwitchAllreduceState(**settings)

    def mortal(state, bucket):
        if rank == last and state.stats().steps == 1 and bucket.is_last():
            die()
        return hook(state, bucket)

    ddp.register_comm_hook(state, mortal)
    outcome = "", "", 0.0
    for step in range(4):
        outcome = error_of(step_loss(ddp, rank, step).backward)
        if outcome[0]:
            break
    return outcome


def dies_with_the_store(rank, ranks, settings):
    """As `dies`, of rank 0, which keeps the store, as it does where no launcher does."""
    met = store_of_all()
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, ranks, True, wait_for_workers=False)
        met.set("port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(met.get("port")), ranks, False)
    # Each rank's connections must be up before another rank closes them.
    met.set(f"connected {rank}", "")
    met.wait([f"connected {other}" for other in range(ranks)])
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    return dies(rank, 0, settings)


def refused(rank, settings, options):
    """Return the error of a first step in which every rank has its own form."""
    state = SwitchAllreduceState(forms=("dense", "sparse")[rank], **settings)
    return error_of(lambda: train(rank, 1, state, **options))


def by_or(rank, steps, or_by):
    """`train` over gloo, with OR had in this way."""
    summation = ProcessGroupSummation("gloo")
    summation._direct_sum, summation._or_method = None, or_by
    return train(rank, steps, SwitchAllreduceState(over=summation))


def functional(rank):
    """Return results of functional collectives, some in compiled code, of a DTensor, of coalesced calls."""
    import torch.distributed._functional_collectives as calls
    from torch.distributed.tensor import Shard, distribute_tensor

    everybody, tensor = dist.group.WORLD, torch.arange(4.0) + rank

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(argument):
        total = calls.all_reduce(2 * argument, "sum", everybody)
        return total + 1

    mesh = init_device_mesh("cpu", (2,))
    total = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)]).sum()
    few = tensor.clone(), torch.ones(2)
    with dist._coalescing_manager(group=everybody):  # private, as FSDP uses it
        for summed in few:
            dist.all_reduce(summed)
    return {
        "sum": calls.all_reduce(tensor, "sum", everybody).tolist(),
        "average": calls.all_reduce(tensor, "avg", everybody).tolist(),
        "several": [
            summed.tolist() for summed in calls.all_reduce_coalesced([tensor, 2 * tensor], "sum", everybody)
        ],
        "broadcast": calls.broadcast(tensor, 1, everybody).tolist(),
        "scattered": calls.reduce_scatter_tensor(tensor, "avg", 0, everybody).tolist(),
        "exchanged": calls.all_to_all_single(tensor, [2, 2], [2, 2], everybody).tolist(),
        "compiled": compiled(tensor).tolist(),
        "dtensor": total.full_tensor().item(),
        "coalesced": [summed.tolist() for summed in few],
    }


def stressed(rank, rounds):
    """Calls for gloo and for the switch, round after round, each with its result checked; how many rounds."""
    world = dist.get_world_size()
    for number in range(rounds):
        if number % 20 == 0:
            _check_other_calls(rank, world, number)
        gathered = [None] * world
        dist.all_gather_object(gathered, (rank, number))
        largest = torch.tensor([rank, -rank, number])
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        assert gathered == [(other, number) for other in range(world)]
        assert largest.tolist() == [world - 1, 0, number]
    return rounds


def _check_other_calls(rank, world, number):
    """One of each kind that the switch and gloo answer."""
    assert _summed(torch.tensor([rank, number])) == [world * (world - 1) // 2, world * number]
    part = torch.zeros(2)
    dist.reduce_scatter(part, [torch.full((2,), float(other + rank)) for other in range(world)])
    assert part.tolist() == [world * rank + world * (world - 1) / 2] * 2
    received = torch.zeros(1)
    sending = dist.isend(torch.tensor([float(number)]), (rank + 1) % world)
    dist.recv(received, (rank - 1) % world)
    sending.wait()
    assert received.item() == number


def in_their_time(rank):
    """The errors of a barrier and a sum for which rank 1 is late, and then the sum, waited for again."""
    store, errors = store_of_all(), list[Any]()
    if rank == 1:
        errors = json.loads(store.get("told"))
        dist.barrier()
    else:
        errors = [list(error_of(lambda: dist.barrier(timeout=timedelta(seconds=0.2)))[:2])]
    total = torch.ones(1)
    work = dist.all_reduce(total, async_op=True) if rank == 0 else None
    if work is None:
        dist.all_reduce(total)
    else:
        errors.append(list(error_of(lambda: work.wait(timedelta(seconds=0.1)))[:2]))
        store.set("told", json.dumps(errors))
        work.wait()
    return [*errors, total.tolist()]


def in_groups(rank):
    """Return the results of sums, broadcasts and barriers in groups of some ranks and of all."""
    seen = []
    for ranks in ([0, 1], [1, 2], [0, 1, 2]):
        group = dist.new_group(ranks)
        if rank in ranks:
            total, sent = torch.full((2,), float(rank)), torch.tensor([rank])
            dist.all_reduce(total, group=group)
            dist.broadcast(sent, ranks[0], group=group)
            dist.barrier(group)
            seen.append((ranks, total.tolist(), sent.item()))
    return [*seen, _summed(torch.ones(2))]


def monitored(rank):
    """Return the errors of barriers for which the last of three ranks is late, in two groups."""
    beside, late = dist.new_group(backend="gloo"), timedelta(seconds=1)
    barriers = [
        lambda: dist.group.WORLD.monitored_barrier(late),
        lambda: dist.monitored_barrier(beside, late),
    ]
    messages = []
    for barrier in barriers:
        messages.append("" if rank == 2 else error_of(barrier)[1])
        dist.barrier()
    return [*messages, _summed(torch.ones(1))]


def _summed(tensor, op=dist.ReduceOp.SUM):
    dist.all_reduce(tensor, op)
    return tensor.tolist()


def sharded(rank, hooked):
    """This rank's shards after three steps of FSDP2 in two shards, two replicas: by the hook, or by torch."""
    from torch.distributed.fsdp import fully_shard  # seconds, of every process that collects tests

    torch.manual_seed(7)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    text = fully_shard(Text(), mesh=mesh["shard"] if hooked else mesh)
    if hooked:
        replicas = mesh.get_group("replicate")
        text.set_all_reduce_hook(fsdp_hook(SwitchAllreduceState(replicas, over="gloo")))
    return descend(text, None, (step_loss(text, rank, step) for step in range(3)))


def sharded_otherwise(rank, factor):
    """Return the error of a reduce-scatter over two ranks, with a gradient divide factor or without."""
    from torch.distributed.fsdp import fully_shard  # seconds, of every process that collects tests

    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))
    text = fully_shard(Text(), mesh=mesh["shard"])
    group = mesh.get_group("shard" if factor is not None else "replicate")
    text.set_custom_reduce_scatter(fsdp_reduce_scatter(SwitchAllreduceState(group, over="gloo")))
    if factor is not None:
        text.set_gradient_divide_factor(factor * 2)
    return " ".join(error_of(step_loss(text, rank, 0).backward)[:2])


def restored(rank):
    """Three steps, then three more from a checkpoint, against six without."""
    expected = train(rank, 6, SwitchAllreduceState(over="gloo"))
    kept = ()
    for begin in (0, 3):
        state, ddp = SwitchAllreduceState(over="gloo"), model()
        for target, values in zip((ddp, state), kept, strict=False):
            target.load_state_dict(values)
        trained = descend(ddp, state, (step_loss(ddp, rank, step) for step in range(begin, begin + 3)))
        kept = ddp.state_dict(), state.state_dict()
        state.close()
    return {"expected": expected, "restored": trained, "steps": kept[1]["steps"]}


def averaged_by(rank, code, given):
    """Run code that makes `ddp` and `state` of a `model`; return the gradient after a pass, and the steps."""
    names = {"model": nn.Linear(len(given), 1, bias=False)}
    exec(code, names)
    names["ddp"](torch.tensor([given])).sum().backward()
    steps = names["state"].stats().steps
    names["state"].close()
    return names["model"].weight.grad.tolist(), steps


def in_two_groups(rank):
    """Return the error of DDP's first pass in a group of this rank alone, with a state of all ranks."""
    groups = [dist.new_group([member]) for member in range(dist.get_world_size())]
    ddp, _ = hooked(DistributedDataParallel(nn.Linear(2, 1), process_group=groups[rank]))
    name, message = error_of(lambda: ddp(torch.ones(2)).sum().backward())[:2]
    return f"{name} {message}"


def leaves_early(rank, timeout_s):
    """Return how long rank 0 takes to exit, in seconds, while it waits for a sum that no other rank joins."""
    state = SwitchAllreduceState(over="gloo", timeout_s=timeout_s)
    state.connect()
    store = store_of_all()
    if rank:
        store.wait(["left"])
        return 0.0
    state.submit(torch.ones(3), [nn.Parameter(torch.zeros(3))])
    started = time.monotonic()
    atexit._run_exitfuncs()
    store.set("left", "")
    return time.monotonic() - started


def leaves(rank):
    """Threads left at exit, and whether the connection is closed, of a state that is still referenced."""
    state = SwitchAllreduceState(over="gloo")
    train(rank, 1, state)
    summation = state._sums.queue.backend
    atexit._run_exitfuncs()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("peelsum sums")]
    return len(threads), summation._group is None


def words_over_gloo(rank, lengths):
    """Parts of these lengths, views, added and OR-ed by direct messages, and by gloo's all_reduce."""
    summation = ProcessGroupSummation("gloo")
    draw = np.random.default_rng(rank)
    words = [np.flip(draw.integers(0, 2**32, n, np.uint32)) for n in lengths]
    parts = [Part(array, op) for array in words for op in ("or", "add")]
    return list(zip(summation.sum_words(parts), summation.sum_words(parts, by="ring"), strict=True))


class Counted:
    """A summation that counts its exchanges."""

    def __init__(self, inner):
        self._inner, self.exchanges = inner, 0
        self.lanes, self.workers, self.worker_id = inner.lanes, inner.workers, inner.worker_id

    def sum_words(self, parts):
        self.exchanges += 1
        return self._inner.sum_words(parts)


def exchanges_of_steps(rank, steps, gbps, **options):
    """Train; the exchanges of each step, and the parameters at the end. `gbps`: of the network model."""
    counted = Counted(ProcessGroupSummation("gloo"))
    state = SwitchAllreduceState(over=counted, network=NetworkModel(gbps=gbps), **options)
    ddp, totals = model(), [0]

    def losses():
        for step in range(steps):
            yield step_loss(ddp, rank, step)
            totals.append(counted.exchanges)

    trained = descend(ddp, state, losses())
    state.close()
    return np.diff(totals).tolist(), trained


def without_last_bucket(rank):
    """The buckets summed after four steps, and after a fifth whose last bucket never gets its gradients."""
    ddp, state = hooked()
    for step in range(4):
        step_loss(ddp, rank, step).backward()
    before = state.stats().buckets
    embedded = ddp.module.embedding.forward
    ddp.module.embedding.forward = lambda words: embedded(words).detach()
    step_loss(ddp, rank, 4).backward()
    after = state.stats().buckets
    state.close()
    return before, after


def ever_other_groups(rank):
    """Average ever other groups of eight parameters; return the averages, and how many sums are kept."""
    rng = np.random.default_rng(0)
    parameters = [nn.Parameter(torch.zeros(40 + number)) for number in range(8)]
    state, averages, kept = SwitchAllreduceState(over="gloo"), [], set()
    with patch.object(buckets, "MOST_SUMS", 6):
        for step, group in enumerate(rng.random((60, len(parameters))) < 0.5):
            chosen = [parameter for parameter, taken in zip(parameters, group, strict=True) if taken]
            for number, parameter in enumerate(parameters):
                own = torch.full_like(parameter, float(step + number * rank))
                parameter.grad = own * (torch.arange(len(own)) % 3 == 0) if group[number] else None
            if chosen:
                state.average_gradients(chosen)
                averages += [float(parameter.grad.sum()) for parameter in chosen]
            kept.add(max(len(state._sums._sums), len(state._sums.queue._last_tickets)))
    state.close()
    return averages, max(kept)


def compiling_late(rank, timeout_s):
    """What rank 0 logged, for which rank 1's compiler waits; the average of the ranks' numbers, twice."""
    store = store_of_all()

    class Log:
        def warning(self, text, *values):
            store.set("waited", text % values)

    with (
        patch.object(starts, "WARN_AFTER_S", 1.3 * timeout_s),
        patch.object(starts, "_log", Log()),
        patch.object(buckets, "warm_up", lambda _: rank == 0 or store.wait(["waited"])),
    ):
        state = SwitchAllreduceState(over="gloo", timeout_s=timeout_s)
        state.connect()
    tensor = torch.full([3], 2.0 * rank)
    state.average(tensor)
    state.close()
    return store.get("waited").decode(), tensor[0].item()


def ends_without_a_pass(rank):
    """The error of rank 0's backward pass, while rank 1 closes its state and ends."""
    ddp, state = hooked(DistributedDataParallel(nn.Linear(4, 3)))
    if rank:
        state.close()
        return []
    return list(error_of(ddp(torch.ones(2, 4)).sum().backward)[:2])


def in_double(rank, settings):
    """The error of a backward pass in float64."""
    torch.manual_seed(7)
    ddp, _ = hooked(DistributedDataParallel(nn.Linear(4, 3, dtype=torch.float64)), **settings)
    return " ".join(error_of(ddp(torch.full([2, 4], 1e300, dtype=torch.float64)).sum().backward)[:2])


def over_a_measured_network(rank):
    """Return the hook's network model, and an average over all ranks."""
    state = SwitchAllreduceState(over="gloo", network="measured")
    gradient = torch.full((1000,), 2.0**rank)
    fsdp_hook(state)(gradient)
    state.close()
    return str(state._sums._settings.network), float(gradient.unique().item())


def by_hooks_of_groups(rank, p4runtime):
    """Return averages over the ranks' pair, (0, 1) or (2, 3), of two tensors, and the jobs at the switch."""
    from peelsum.control import open_session
    from peelsum.control.tables import read_jobs

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    state = SwitchAllreduceState(pairs[rank // 2], over="switch")
    averages = []
    for sign in (1.0, -1.0):
        gradient = torch.full((1000,), sign * 2.0**rank)
        fsdp_hook(state)(gradient)
        averages.append(float(gradient.unique().item()))
    dist.barrier()
    with open_session(p4runtime) as session:
        numbers = [job.job_id for job in read_jobs(session)]
    dist.barrier()
    state.close()
    return averages, numbers


def in_mesh(rank, p4runtime):
    """Return sums in a row, a column and the whole of a mesh of two by two ranks, of many at a time.

    Returns the jobs at the switch, too, then the jobs left after all ranks' rows have ended, and warnings.
    """
    from peelsum.control import open_session
    from peelsum.control.tables import read_jobs

    said = BufferingHandler(1000)
    said.setLevel(logging.WARNING)
    logging.getLogger("peelsum").addHandler(said)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("column", "row"))
    groups = [mesh.get_group("row"), mesh.get_group("column"), dist.group.WORLD]
    for _ in range(20):
        tensors = [torch.tensor([1 << rank] * 1000) for _ in groups]
        works = [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, groups, strict=True)]
        for work in works:
            work.wait()
    sums = [int(tensor.unique().item()) for tensor in tensors]
    with open_session(p4runtime) as session:
        numbers = [job.job_id for job in read_jobs(session)]
        dist.barrier()
        dist.destroy_process_group(groups[0])
        dist.barrier()
        while len(left := [job.job_id for job in read_jobs(session)]) > max(3, len(numbers) - 2):
            time.sleep(0.01)
    dist.barrier()
    dist.destroy_process_group()
    warnings = [record.getMessage() for record in said.buffer]
    return sums, numbers, left, [warning for warning in warnings if warning.startswith("group of")]

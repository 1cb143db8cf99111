"""Two ranks that sum for thousands of steps, while others enter, leave in order, or are killed."""

from random import Random

import numpy as np
import psutil
import torch
from lost_ranks import digest
from patience import until
from torch_ranks import die

from peelsum.torch import HookConfigError, SwitchAllreduceState, hook
from peelsum.transport import TransportError

SIZE = 400
TABLES = "ab"


def gradient(rank, step):
    """Return integers, of which the first, that of the end, is zero."""
    values = (np.arange(SIZE, dtype=np.int64) * (7 + rank) + step * 13) % 1001 - 500
    values[0] = 0
    return values.astype(np.float32)


def expected(members, step, end):
    """Return the average, computed in float64 and rounded once; `end` is its first element."""
    average = np.sum([gradient(rank, step).astype(np.float64) for rank in members], 0) / len(members)
    average[0] = end
    return average.astype(np.float32)


class Run:
    """A rank's sums, each of which is compared with those of the members that it names."""

    def __init__(self, **options):
        self.parameter = torch.nn.Parameter(torch.zeros(SIZE))
        self.module = torch.nn.ParameterDict({"p": self.parameter})
        self.state = SwitchAllreduceState(
            names=[("p", self.parameter)], on_lost="continue", shared={"module": self.module}, **options
        )
        self.state.connect()
        #: The step of the first wrong average; whether the end has come; the digests of parameters by step.
        self.wrong, self.ended, self.digests = -1, False, dict[int, str]()

    def step(self, ends):
        """Sum once. ends: whether this rank wants to end."""
        step, rank = self.state.steps, self.state.rank or 0
        values = gradient(rank, step)
        values[0] = ends
        buffer = torch.from_numpy(values)
        self.state.submit(buffer, [self.parameter]).wait()
        self.state.end_step()
        self.ended = bool(buffer[0] > 0)
        right = expected(self.state.stats().members["p"], step, float(buffer[0]))
        if digest(buffer.numpy()) != digest(right) and self.wrong < 0:
            self.wrong = step
        self.parameter.data += buffer
        self.digests[step] = digest(self.parameter.detach().numpy())


def stay(rank, folder, steps, visitors=0):
    """Sum for so many steps, or as rank 2 or 3 for a few; return what this process had meanwhile.

    visitors: how many files `visited ...` there must be before the end. A file says that the others have
    left, and another one that the run has ended. If there is a file `wait`, they leave when there is a file
    `leave`.
    """
    run, process, held = Run(), psutil.Process(), list[tuple[int, int, int]]()
    while not run.ended and (rank < 2 or run.state.steps < 5):
        is_last = rank == 0 and run.state.steps >= steps
        run.step(ends=is_last and len([*folder.glob("visited *")]) >= visitors)
        if run.state.steps % 100 == 0:
            held.append((process.memory_info().rss, process.num_fds(), process.num_threads()))
        if run.state.members == (0, 1):
            (folder / "left").touch()
    if not run.ended and (folder / "wait").exists():
        (folder / f"leaves {rank}").touch()
        until((folder / "leave").exists)
    if run.ended:
        (folder / "ended").touch()
    run.state.close()
    return {"wrong": run.wrong, "held": held, "digests": run.digests}


def visit(_, seed):
    """Enter, sum for some steps, and leave, or be killed; or return why it came too late."""
    random = Random(seed)
    try:
        run = Run(enters=True)
    except (HookConfigError, TransportError) as error:
        return str(error), -1, {}
    for _ in range(random.randrange(5, 60)):
        run.step(ends=False)
        if run.ended:
            break
    if random.random() < 0.5 and not run.ended:
        die()
    run.state.close()
    return "", run.wrong, run.digests


def train_tables(rank, folder, enters=False):
    """Train two sparse tables by DDP; return the digest of both after each step.

    Rank 3 is killed. The process that enters then leaves after ten steps, and the others end with its last.
    """
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({name: torch.nn.Embedding(50, 4, sparse=True) for name in TABLES})
    ddp = torch.nn.parallel.DistributedDataParallel(TwoTables(model))
    rows = torch.zeros(3, dtype=torch.long)
    for _ in range(2):
        ddp(rows).backward()
    ddp.zero_grad()
    names, shared = model.named_parameters(), {"model": model}
    state = SwitchAllreduceState(names=names, on_lost="continue", shared=shared, enters=enters)
    ddp.register_comm_hook(state, hook)
    state.connect()
    first, digests, members = state.steps, dict[int, str](), [(0, 1, 2, 3)]
    while (state.steps < first + 10) if enters else len(members) < 4:
        if rank == 3 and state.steps == 5:
            die()
        step, place = state.steps, state.rank or 0
        ddp(rows + 10 * place + step % 7).backward()
        for parameter in model.parameters():
            parameter.data -= parameter.grad.to_dense()
            parameter.grad = None
        digests[step] = digest(np.concatenate([p.detach().numpy() for p in model.parameters()]))
        summed = state.stats().members["a.weight"]
        assert summed == state.stats().members["b.weight"]
        if summed != members[-1]:
            members.append(summed)
        if len(members) == 2:
            (folder / "lost").touch()
    state.close()
    return digests


class TwoTables(torch.nn.Module):
    """The sum of what two tables have in some rows."""

    def __init__(self, tables):
        super().__init__()
        self.tables = tables

    def forward(self, rows):
        return sum(table(rows).sum() for table in self.tables.values())

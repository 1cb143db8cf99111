"""The time of steps around the death of ranks.

Rank processes average three gradients in each step over the softswitch, with `on_lost="continue"`. In one
step, some of them are killed by SIGKILL, each at a random moment. Steps follow each other without a pause.
Each average is compared with one computed from the gradients of exactly the ranks that its statistics name.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import Experiment, Plot, Series, Size, Value
from benchmarks.experiment import ExperimentError
from benchmarks.served_job import served_job

#: Steps of a run; the one in which ranks are killed; and the number of those before it that are timed.
_STEPS, _DEATH, _TIMED = 40, 20, 10
#: Seconds within which a run must end.
_PATIENCE_S = 300.0
#: The share of each of the three gradients in the elements.
_SHARES = (0.1, 0.3, 0.6)
#: Of a step: when it ended, by time.monotonic, and the ranks in each of its averages.
Step = tuple[float, list[tuple[int, ...]]]


def measure(seed: int, ranks: int, killed: int, elements: int) -> dict[str, Value]:
    """Run ranks of which some are killed; return the times. Raises ProcessError, or what a rank raises."""
    victims = Random(seed).sample(range(ranks), killed)
    context = get_context("forkserver")
    context.set_forkserver_preload(["peelsum.torch", "peelsum.allreduce.history_loops"])
    with TemporaryDirectory(prefix="peelsum-") as folder, served_job(ranks) as environment:
        pipes, processes = [], []
        for rank in range(ranks):
            parent_end, rank_end = context.Pipe()
            moment = Random(f"{seed} {rank}").random() if rank in victims else None
            store = str(Path(folder) / "store")
            arguments = (rank_end, rank, ranks, store, environment, moment, elements, seed)
            processes.append(context.Process(target=_run, args=arguments, daemon=True))
            processes[-1].start()
            rank_end.close()
            pipes.append(parent_end)
        try:
            died_at = max(float(_received(pipes[rank])) for rank in victims)
            results = [_received(pipe) for rank, pipe in enumerate(pipes) if rank not in victims]
        finally:
            for process in processes:
                process.kill()
                process.join()
    row = _row([steps for steps, _ in results], died_at, ranks - killed)
    return row | {"wrong": sum(wrong for _, wrong in results)}


def _received(pipe: Connection) -> Any:
    """Return what a rank has sent. Raises ExperimentError if it failed, or takes too long."""
    result = pipe.recv() if wait([pipe], _PATIENCE_S) else f"a rank did not end within {_PATIENCE_S:g} s"
    if isinstance(result, str):
        raise ExperimentError(result)
    return result


def _row(runs: Sequence[Sequence[Step]], died_at: float, survivors: int) -> dict[str, Value]:
    """Return the times in ms, given the survivors' steps: a step ends when all have completed it."""
    ends = np.array([[ended_at for ended_at, _ in steps] for steps in runs]).max(axis=0)
    times = 1000 * np.diff(ends, prepend=np.nan)
    step = int(np.argmax(ends > died_at))
    members = {member for steps in runs for member in steps[step][1]}
    return {
        "before_ms": float(median(times[_DEATH - _TIMED : _DEATH])),
        "death_ms": 1000 * (ends[step] - died_at),
        "next_ms": float(times[step + 1]),
        "after_ms": float(median(times[-_TIMED:])),
        "kept": sum(len(member) > survivors for member in members),
    }


def _run(pipe: Connection, *arguments: Any) -> None:
    """Run a rank in its process; send its result, or its error as a text."""
    from peelsum.processes.children import die_with_parent

    die_with_parent()
    try:
        pipe.send(_train(pipe, *arguments))
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")
        raise


def _train(
    pipe: Connection,
    rank: int,
    ranks: int,
    store: str,
    environment: Mapping[str, str],
    moment: float | None,
    elements: int,
    seed: int,
) -> tuple[list[Step], int]:
    """Sum in each step; return the steps, and the number of wrong elements.

    moment: when this rank is killed after a step's begin, in usual step times; None if it is not.
    """
    import torch
    import torch.distributed as dist

    from peelsum.torch import SwitchAllreduceState

    os.environ.update(environment)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    sizes = [int(share * elements) for share in _SHARES]
    named = [(f"p{i}", torch.nn.Parameter(torch.zeros(size))) for i, size in enumerate(sizes)]
    state = SwitchAllreduceState(names=named, on_lost="continue")
    state.connect()
    # Otherwise all ranks may collect garbage in the step of the death: with torch loaded, for 0.1 s each.
    gc.collect()
    gc.freeze()
    gradients = [gradient(seed, rank, i, size) for i, size in enumerate(sizes)]
    steps: list[Step] = []
    averages: list[list[NDArray[np.float32]]] = []
    for step in range(_STEPS):
        if step == _DEATH and moment is not None:
            usual_s = float(np.median(np.diff([ended_at for ended_at, _ in steps[-_TIMED:]])))
            threading.Thread(target=_die, args=(pipe, moment * usual_s), daemon=True).start()
        buffers = [torch.from_numpy(values * np.float32(1 + step % 7)) for values in gradients]
        futures = [
            state.submit(buffer, [parameter], last=parameter is named[-1][1])
            for buffer, (_, parameter) in zip(buffers, named, strict=True)
        ]
        for future in futures:
            future.wait()
        state.end_step()
        members = state.stats().members
        steps.append((time.monotonic(), [members[name] for name, _ in named]))
        averages.append([buffer.numpy() for buffer in buffers])
    if moment is not None:
        time.sleep(_PATIENCE_S)  # the kill is still to come
    state.close()
    return steps, _wrong(steps, averages, sizes, ranks, seed)


def _die(pipe: Connection, delay_s: float) -> None:
    """End this process as the kernel does when memory is short; send the time before."""
    time.sleep(delay_s)
    pipe.send(time.monotonic())
    os.kill(os.getpid(), signal.SIGKILL)


def gradient(seed: int, rank: int, number: int, size: int) -> NDArray[np.float32]:
    """Return a rank's gradient float32[size], of whole numbers up to 1,000; nine in ten are zero."""
    random = np.random.default_rng([seed, rank, number])
    return (random.integers(-1000, 1001, size) * (random.random(size) < 0.1)).astype(np.float32)


def _wrong(
    steps: Sequence[Step],
    averages: Sequence[Sequence[NDArray[np.float32]]],
    sizes: Sequence[int],
    ranks: int,
    seed: int,
) -> int:
    """Return how many elements differ from the averages over the named members, computed in float64."""
    wrong = 0
    for number, size in enumerate(sizes):
        values = np.stack([gradient(seed, rank, number, size) for rank in range(ranks)]).astype(np.float64)
        for step, (_, members) in enumerate(steps):
            total = values[list(members[number])].sum(axis=0) * (1 + step % 7)
            expected = (total / len(members[number])).astype(np.float32)
            wrong += int(np.count_nonzero(averages[step][number] != expected))
    return wrong


TIMES = ("before_ms", "death_ms", "next_ms", "after_ms")
EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "before_ms": "median time of the ten steps before",
        "death_ms": "from the last kill to the end of that step on the last rank that is left",
        "next_ms": "time of the next step",
        "after_ms": "median time of the last ten steps, with fewer ranks",
        "kept": "averages of that step, of three, that have the part of a rank that was killed",
        "wrong": "elements that differ from an independent average of the members, all steps and ranks",
    },
    defaults={"elements": 2**18},
    sizes={
        "quick": Size([{"ranks": 4, "killed": 1}], 2),
        "usual": Size([{"ranks": (4, 8), "killed": (1, 2, 3)}], 3),
        "full": Size([{"ranks": (4, 8, 16), "killed": (1, 2, 3)}], 10),
    },
    ranges={"ranks": (2, 32), "killed": (1, 31), "elements": (100, 1 << 26)},
    plots=[
        Plot(
            "steps",
            x="killed",
            y=" ".join(TIMES),
            where={"ranks": 8},
            kind="bars",
            names={
                **{str(count): f"{count} of 8 ranks killed" for count in (1, 2, 3)},
                "before_ms": Series("a step before", "grey"),
                "death_ms": Series("from the kill to the step's end", "blue", ours=True),
                "next_ms": Series("the next step", "teal"),
                "after_ms": Series("a step after", "brown"),
            },
            finding="""{death_ms@1:.0f} ms after one of eight ranks was killed, the others have completed the
                step without it; a usual step takes {before_ms@1:.0f} ms""",
            setting="""Processes sum 1 MiB a step over loopback through the softswitch, and are killed at
                random moments. Measured.""",
            ylabel="Time (ms)",
        )
    ],
)

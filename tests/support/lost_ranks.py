"""Ranks that sum through the hook's state until they are killed at a random moment of a step."""

import hashlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch_ranks import die

from peelsum.torch import SwitchAllreduceState

#: Elements of each bucket's gradient.
SIZES = (3000, 40, 20_000)
#: The steps that a rank which is to be killed takes at most from then on.
_STEPS_TO_LIVE = 3


def gradient(rank, step, bucket):
    """Return a rank's gradient, integers of at most 1,000, of which one in ten is not zero."""
    random = np.random.default_rng((rank, step, bucket))
    values = random.integers(-1000, 1001, SIZES[bucket]).astype(np.float32)
    values[random.random(SIZES[bucket]) < 0.9] = 0.0
    return values


def expected(members, step, bucket):
    """Return the average of the members' gradients, computed in float64 from integers and rounded once."""
    total = np.sum([gradient(rank, step, bucket).astype(np.float64) for rank in members], 0)
    return (total / len(members)).astype(np.float32)


def digest(values):
    """Return a digest of an array's bits; zeros have one sign."""
    return hashlib.blake2b((values + np.float32(0)).tobytes(), digest_size=8).hexdigest()


def check_sums(ranks):
    """Check that all ranks have the same averages of the members that they name; return them by step."""
    sums = {}
    totals = {}
    for records, (_, message, _) in ranks:
        assert not message
        for step, averages, _, parameters in records:
            assert sums.setdefault(step, averages) == averages
            assert totals.setdefault(step, parameters) == parameters
    for step, averages in sums.items():
        for bucket, (members, bits) in enumerate(averages):
            assert bits == digest(expected(members, step, bucket))
    return sums


def killed_at(folder):
    """Return the time at which each rank was killed, by time.monotonic."""
    return {int(path.name): float(path.read_text()) for path in folder.iterdir()}


def _die_soon(rank, delay_s, folder):
    time.sleep(delay_s)
    written = folder.parent / f"{folder.name} {rank}"
    written.write_text(str(time.monotonic()))
    written.rename(folder / str(rank))  # others read the folder meanwhile
    die()


def stop(until, process=0):
    """Stop a process, by default this one, by SIGSTOP for some seconds, or until a file exists."""
    process = process or os.getpid()
    wait = f"while [ ! -e '{until}' ]; do sleep 0.1; done" if isinstance(until, Path) else f"sleep {until}"
    subprocess.Popen(["sh", "-c", f"{wait}; kill -CONT {process}"])
    os.kill(process, signal.SIGSTOP)


class Weights:
    """The parameters, which a rank that enters gets from the others."""

    def __init__(self):
        self.parameters = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]

    def named(self):
        return [(f"p{bucket}", parameter) for bucket, parameter in enumerate(self.parameters)]

    def state_dict(self):
        return {name: parameter.data for name, parameter in self.named()}

    def load_state_dict(self, values):
        for name, parameter in self.named():
            parameter.data.copy_(values[name])


class Killed(Weights):
    """Parameters whose rank is killed as soon as it has got them."""

    def load_state_dict(self, values):
        die()


def train(rank, steps, kills, folder, options, stops=MappingProxyType({}), members=0, saved=None):
    """Average `SIZES` in each step; return a record of each, and the error that ended them if one did.

    kills: the step of each rank that is killed, and the seconds from its begin to the kill.
    stops: the step of each rank that is stopped before it, and the seconds.
    saved: the folder of a checkpoint after the last step.
    members: end after `steps` only when there are so many members; with `enters`, this rank enters a run.
    A record has the step, members and digest of each average, when the last one was there, and the digest of
    the parameters, which are the sums of all averages.
    """
    weights = Weights()
    parameters = weights.parameters
    shared = {"weights": Killed() if options.get("shared") == "killed" else weights}
    names = weights.named()
    if options.get("names") == "other":
        names[0] = "p0", torch.nn.Parameter(torch.zeros(7))
    if options.get("shared") == "none":
        shared = {}
    state = SwitchAllreduceState(**{**options, "shared": shared, "names": names})
    records, error, summed = [], ("", "", 0.0), ()
    try:
        state.connect()
        rank = rank if state.rank is None else state.rank
        while state.steps < steps or len(summed) < members:
            step = state.steps
            if rank in kills and step >= kills[rank][0] + _STEPS_TO_LIVE and not options.get("enters"):
                time.sleep(1000)
            if kills.get(rank, (-1, 0.0))[0] == step and not options.get("enters"):
                arguments = rank, kills[rank][1], folder
                threading.Thread(target=_die_soon, args=arguments, daemon=True).start()
            if stops.get(rank, (-1, 0.0))[0] == step:
                stop(stops[rank][1])
            buffers = [torch.from_numpy(gradient(rank, step, bucket)) for bucket in range(len(SIZES))]
            futures = [
                state.submit(buffer, [parameter], last=parameter is parameters[-1])
                for buffer, parameter in zip(buffers, parameters, strict=True)
            ]
            for future in futures:
                future.wait()
            state.end_step()
            ended_at, names = time.monotonic(), state.stats().members
            sums = [(names[f"p{i}"], digest(buffer.numpy())) for i, buffer in enumerate(buffers)]
            for parameter, average in zip(parameters, buffers, strict=True):
                parameter.data += average
            summed = names["p0"]
            total = digest(np.concatenate([parameter.detach().numpy() for parameter in parameters]))
            records.append((step, sums, ended_at, total))
        if saved is not None:
            state.save(saved)
        state.close()
    except Exception as failure:
        error = type(failure).__name__, str(failure), time.monotonic()
    if rank in kills and not error[0] and not options.get("enters"):
        time.sleep(1000)  # the kill is still to come
    return records, error

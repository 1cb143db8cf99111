"""Recorded gradients are those that were trained with; benches replay them."""

import json
import sys
from itertools import islice

import numpy as np
import pytest
from command_line import peelsum

from peelsum.traces import SUFFIX, read, read_folder

torch = pytest.importorskip("torch", reason="torch is not installed")

HOOKED = """\
import sys
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from peelsum.torch import SwitchAllreduceState, hook

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Linear(4, 3))
ddp = DistributedDataParallel(model)
state = SwitchAllreduceState(over="gloo", names=model.named_parameters())
ddp.register_comm_hook(state, hook)
kept = {}
for step in range(4):
    ddp.zero_grad()
    ddp(torch.tensor([step, 7])).square().sum().backward()
    again = torch.autograd.grad(model(torch.tensor([step, 7])).square().sum(), list(model.parameters()))
    for (name, _), gradient in zip(model.named_parameters(), again):
        kept[f"{step} {name}"] = gradient.numpy()
np.savez(f"{sys.argv[1]}/kept.npz", **kept)
state.close()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ncf(tmp_path_factory):
    """A trace of two workers and three steps."""
    folder = tmp_path_factory.mktemp("ncf")
    done = peelsum(
        *("trace", "record", "--model", "ncf", "--workers", "2", "--steps", "3", "--values"),
        *("--out", str(folder)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ncf: 2 workers, 3 steps, 470,449 elements, ")
    return folder


@pytest.fixture
def one_thread():
    """Compute as the recorder does: the number of threads can change bits of a gradient."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_model_s_gradients_are_recorded_bit_for_bit(ncf):
    from peelsum.training import make_task

    task = make_task("ncf")
    optimizer = task.optimizer(task.model.parameters())
    batches = [task.batches(rank, 2, 0) for rank in range(2)]
    for step in range(2):
        sums = {}
        for rank, trace in enumerate(read_folder(ncf)):
            optimizer.zero_grad()
            (batch,) = islice(batches[rank], 1)
            task.model(*batch).backward()
            of = {name: parameter.grad.clone() for name, parameter in task.model.named_parameters()}
            expected = np.concatenate([of[name].numpy().reshape(-1) for name in trace.names])
            np.testing.assert_array_equal(trace.gradient(step), expected)
            for name, gradient in of.items():
                sums.setdefault(name, []).append(gradient)
        for name, parameter in task.model.named_parameters():
            parameter.grad = (sums[name][0] + sums[name][1]) / 2
        optimizer.step()


@pytest.mark.system
def test_any_script_with_the_hook_is_recorded(tmp_path):
    script, out = tmp_path / "hooked.py", tmp_path / "trace"
    script.write_text(HOOKED)
    command = (sys.executable, str(script), str(tmp_path))
    done = peelsum("trace", "record", "--steps", "3", "--values", "--out", str(out), *command)
    assert done.returncode == 0, done.stderr
    trace = read(out / f"worker-0{SUFFIX}")
    assert (trace.steps, trace.worker, trace.workers) == (3, 0, 1)
    with np.load(tmp_path / "kept.npz") as kept:
        for step in range(3):
            expected = [kept[f"{step} {name}"].reshape(-1) for name in trace.names]
            np.testing.assert_array_equal(trace.gradient(step), np.concatenate(expected))
    assert (trace.ready_s >= 0).all()


def test_a_trace_is_shown(ncf):
    found = json.loads(peelsum("trace", "show", str(ncf), "--json").stdout)
    assert (found["name"], found["workers"], len(found["tensors"])) == ("ncf", 2, 10)
    users = next(one for one in found["tensors"] if one["tensor"] == "users.weight")
    assert users["shape"] == [6040, 16]
    assert 0.03 < users["worker"] < users["union"] < 2 * users["worker"]
    assert "users.weight" in peelsum("trace", "show", str(ncf)).stdout


@pytest.mark.system
def test_workers_sum_a_trace_over_the_switch(ncf):
    options = ("--trace", str(ncf), "--iterations", "1", "--warmups", "1")
    done = peelsum("bench", "allreduce", *options, "--json")
    assert done.returncode == 0, done.stderr
    dense, compact = json.loads(done.stdout)
    assert [dense["ranks"], dense["wrong"], compact["wrong"], dense["form"]] == [2, 0, 0, "dense"]
    union = np.logical_or(*(trace.gradient(-1) != 0 for trace in read_folder(ncf)))
    assert compact["density"] == union.mean()
    assert compact["wire_bytes"] < dense["wire_bytes"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("trace", "record"), "COMMAND: give a command or --model, and not both"),
        (("trace", "record", "--model", "ncf", "true"), "COMMAND: give a command or --model, and not both"),
        (("trace", "record", "--model", "gpt"), "--model: 'gpt' is unknown; use ncf, lstm, vgg19, bert"),
        (("trace", "record", "--out", "t", "no-such-command"), "no-such-command: No such file or directory"),
        (("trace", "record", "--out", "t", "true"), "true: recorded nothing; its ranks must use"),
        (("trace", "show", "nowhere"), "nowhere: has no files"),
        (("bench", "allreduce", "--trace", "nowhere"), "nowhere: has no files"),
    ],
)
def test_errors_are_one_line(arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = peelsum(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"peelsum: {told}")

"""The state's checkpoints, of this rank and of another number of ranks; its files, and its copies."""

import copy
import io

import numpy as np
import pytest
import torch
import torch_training as training
from compressors import exactly
from torch_alone import Sums, hooked, layers

from peelsum.torch import HookConfigError, SwitchAllreduceState, TopK, checkpoint, hook
from peelsum.torch import state as state_module

pytestmark = pytest.mark.usefixtures("alone")

ELEMENTS = 40


@pytest.fixture
def at(monkeypatch):
    """Put this process at a place: a rank of so many, of which `group` takes part."""

    def put(rank, ranks, group=None):
        def place(of):
            return (rank, ranks) if of is None else (of.index(rank), len(of))

        for module in (checkpoint, state_module):
            monkeypatch.setattr(module, "rank_and_size", place)
        state = SwitchAllreduceState(over=Sums(), compressor=TopK(0.5, momentum=0.5))
        state.process_group = group
        return state

    return put


@pytest.fixture
def of_three(at):
    """The values of three ranks: residuals and velocities in units of their own, some of them 0."""
    draw = np.random.default_rng(3)

    def values(rank):
        state = at(rank, 3)
        numbers, velocity = draw.integers(-(2**20), 2**20, (2, ELEMENTS)) * draw.integers(0, 2, (2, ELEMENTS))
        scales = draw.integers(-15, 16, ELEMENTS).astype(np.int16)
        arrays = {"numbers": numbers, "velocity": velocity, "scales": scales}
        residuals = {"w": {name: torch.from_numpy(array) for name, array in arrays.items()}}
        return state.state_dict() | {"steps": 7, "residuals": residuals}

    return [values(rank) for rank in range(3)]


def total(values, part):
    """The exact sum of a part of several ranks' residuals, by element."""
    residuals = [one["residuals"]["w"] for one in values if "w" in one["residuals"]]
    rows = [exactly(one[part], one["scales"]) for one in residuals]
    return [sum(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_other_ranks_share_out_all_residuals(at, of_three, ranks):
    shared = []
    for rank in range(ranks):
        state = at(rank, ranks)
        state.load_state_dict(of_three[::-1])
        shared.append(state.state_dict())
    for part in ("numbers", "velocity"):
        assert total(shared, part) == total(of_three, part)
    assert [values["steps"] for values in shared] == [7] * ranks
    if ranks == 3:
        assert [total([one], "numbers") for one in shared] == [total([one], "numbers") for one in of_three]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            lambda three: three[0],
            r"rank: the residuals are those of rank 0 of 3, and this is rank 1 of 3; save",
        ),
        (lambda three: three[1] | {"ranks": 2}, "those of rank 1 of 2, and this is rank 1 of 3; save"),
        (
            lambda three: three[:2],
            "values: are those of rank 0 of 3 after 7 steps, rank 1 of 3 .*; give those of",
        ),
        (lambda three: [three[0], three[1], three[1]], "give those of every rank of one run"),
        (lambda three: [*three[:2], three[2] | {"steps": 8}], "rank 2 of 3 after 8 steps; give"),
        (lambda three: [], "values: a list is not a state"),
    ],
    ids=["another rank", "another number", "incomplete", "twice", "another step", "none"],
)
def test_residuals_of_other_ranks_are_refused(at, of_three, given, message):
    state = at(1, 3)
    before = state.state_dict()
    with pytest.raises(HookConfigError, match=message):
        state.load_state_dict(given(of_three))
    assert state.state_dict() == before


def test_a_state_without_residuals_serves_every_rank(at, tmp_path):
    at(0, 2)
    SwitchAllreduceState(over=Sums()).save(tmp_path)
    at(2, 3)
    SwitchAllreduceState(over=Sums()).load(tmp_path)


def test_files_of_each_rank(at, of_three, tmp_path):
    for rank in range(3):
        state = at(rank, 3)
        state.load_state_dict(of_three[rank])
        state.save(tmp_path / "checkpoint")
    for rank in range(3):
        state = at(rank, 3)
        state.load(tmp_path / "checkpoint")
        assert total([state.state_dict()], "numbers") == total([of_three[rank]], "numbers")
    state = at(1, 2)
    with pytest.raises(
        HookConfigError, match=r"no state of rank 1 of 2, but that of 3 ranks; .*redistribute=True"
    ):
        state.load(tmp_path / "checkpoint")
    state.load(tmp_path / "checkpoint", redistribute=True)
    assert total([state.state_dict()], "numbers") == total([of_three[1]], "numbers")
    state.save(tmp_path / "checkpoint")
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["peelsum-rank-1-of-2.pt"]


@pytest.mark.parametrize(("ranks", "group"), [(3, [0, 2]), (4, [1, 2]), (4, [0, 1, 2, 3]), (6, [5])])
def test_files_of_a_group_are_for_any_other(at, of_three, tmp_path, ranks, group):
    for number, values in enumerate(of_three):
        state = at(number + 1, 4, [1, 2, 3])
        state.load_state_dict(values)
        state.save(tmp_path)
    shared = []
    for rank in group:
        state = at(rank, ranks, group)
        state.load(tmp_path, redistribute=True)
        shared.append(state.state_dict())
    assert total(shared, "numbers") == total(of_three, "numbers")


def test_files_of_two_groups_are_refused(at, tmp_path):
    for rank in range(4):
        at(rank, 4, [[0, 1], [2, 3]][rank // 2]).save(tmp_path)
    with pytest.raises(HookConfigError, match=r"rank 1 of 2 .*of one process_group.* a folder of its own"):
        at(0, 3, [0, 1]).load(tmp_path, redistribute=True)


def test_a_folder_without_a_state(at, tmp_path, caplog):
    state = at(0, 1)
    with pytest.raises(
        HookConfigError, match="has no state of rank 0 of 1, but that of no ranks; save it on"
    ):
        state.load(tmp_path, redistribute=True)
    state.load_if_saved(tmp_path)
    assert "training continues with an empty one" in caplog.text
    with pytest.raises(HookConfigError, match="folder: s3://bucket/x is not a path of this machine"):
        state.save("s3://bucket/x")


def pickled(ddp):
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled], ids=["deepcopy", "torch.save"])
def test_a_copy_of_the_module_trains_on_with_the_same_bits(copied, caplog):
    module = layers()
    state = SwitchAllreduceState(over="gloo", names=module.named_parameters(), compressor=TopK(0.3))
    ddp = hooked(state, module)
    descend(ddp)
    other = copied(ddp)
    ((_, other_state),) = other._comm_hooks
    assert other_state is not state
    other.register_comm_hook(other_state, hook)  # torch copies no hooks
    assert other_state._names.assigned == state._names.assigned
    for trained in (ddp, other):
        descend(trained)
    for parameter, same in zip(ddp.parameters(), other.parameters(), strict=True):
        assert parameter.isfinite().all()
        assert torch.equal(parameter, same)
    assert other_state.stats().tensors.keys() == state.stats().tensors.keys()
    for one in (state, other_state, copy.deepcopy(state)):
        one.close()
    assert "no gradient ever came" not in caplog.text


def descend(ddp):
    losses = (ddp(torch.arange(6.0) + step).square().sum() for step in range(3))
    training.descend(ddp, None, losses, optimizer=torch.optim.SGD(ddp.parameters(), lr=0.01))


def test_a_connection_of_the_users_is_not_copied():
    with pytest.raises(HookConfigError, match=r"over: a Summation cannot be copied; copy ddp\.module"):
        copy.deepcopy(SwitchAllreduceState(over=Sums()))


def test_a_checkpoint_that_is_a_pipe_is_refused(at, named_pipe, tmp_path):
    named_pipe.rename(path := tmp_path / "peelsum-rank-0-of-2.pt")
    with pytest.raises(HookConfigError, match=f"folder: {path}: is not a regular file; load another"):
        at(0, 2).load(tmp_path)
    path.rename(named_pipe)


@pytest.mark.parametrize("kept", [0, 100, -100])
def test_a_damaged_file_is_named(at, tmp_path, kept):
    at(0, 2).save(tmp_path)
    (path,) = checkpoint.saved_files(tmp_path).values()
    path.write_bytes(path.read_bytes()[:kept])
    for rank in (0, 1):
        with pytest.raises(HookConfigError, match=f"folder: {path} is damaged"):
            at(rank, 2).load(tmp_path, redistribute=True)

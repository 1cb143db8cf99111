"""The hook's state as plain numbers and tensors, which `torch.load` accepts by default, and its files.

History, decisions and the arrays of compressors are the same on all ranks. Residuals differ, so each rank
writes a file. If the number of ranks has changed, the residuals are divided among the new ranks: rank r takes
those of the old ranks r, r + ranks, r + 2 ranks and so on, and adds them up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from peelsum.allreduce import History
from peelsum.allreduce.allreduce import Reducer
from peelsum.compress import CompressError
from peelsum.reading import check_regular
from peelsum.torch.errors import HookConfigError

_VERSION = 3
_FILE = re.compile(r"peelsum-rank-(\d+)-of-(\d+)\.pt")
#: A rank, and the number of ranks in its group.
RankAndSize = tuple[int, int]


def rank_and_size(group: dist.ProcessGroup | None) -> RankAndSize:
    """Return this process's rank in a group, and the group's size; (0, 1) without torch.distributed."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def pack_state(place: RankAndSize, steps: int, history: History, reducer: Reducer) -> dict[str, Any]:
    """Return the state as numbers and tensors, by name: copies of the history and the reducer's values.

    place: this rank and the number of ranks. steps: the number of steps so far.
    """
    rank, ranks = place
    values = {"version": _VERSION, "rank": rank, "ranks": ranks, "steps": steps, "seen": history.saved()}
    return {name: to_tensors(value) for name, value in (values | reducer.saved()).items()}


def unpack_state(
    state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    place: RankAndSize,
    history: History,
    reducer: Reducer,
) -> int:
    """Restore the history and the reducer from a saved state; return its number of steps.

    state: the result of `pack_state` on this rank, or a list of the results of all ranks of a run.
    place: this rank and the number of ranks.
    Any compressor or strategy can use saved residuals, but only a strategy continues its decisions.
    Raises HookConfigError if the values do not fit this state, or this rank.
    """
    of_all_ranks = isinstance(state, list | tuple) and len(state) > 0
    sources: Sequence[Any] = state if of_all_ranks else [state]  # type: ignore[assignment]  # other types are refused below
    for values in sources:
        _check(values, reducer)
    values = sources[0]
    if reducer.keeps_residuals and of_all_ranks:
        sources = _sources_for_rank(sources, place)
    elif reducer.keeps_residuals and (values.get("rank"), values.get("ranks")) != place:
        raise HookConfigError(
            f"rank: the residuals are those of rank {values.get('rank')} of {values.get('ranks')}, and this "
            f"is rank {place[0]} of {place[1]}; save and load them on every rank, by state.save(folder) and "
            "state.load(folder)"
        )
    try:
        steps, history_arrays = int(values["steps"]), to_arrays(values.get("seen", {}))
        residuals = [to_arrays(source.get("residuals", {})) for source in sources]
        reducer.restore({**values, "kept": to_arrays(values.get("kept", {}))}, residuals)
    except CompressError as error:
        raise HookConfigError(str(error)) from error
    # RuntimeError is torch's; an infinite number of steps raises OverflowError.
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise HookConfigError(
            f"values: are not a saved state ({type(error).__name__}: {error}); give the result of state_dict"
        ) from error
    try:
        history.restore(history_arrays)
    except ValueError as error:
        raise HookConfigError(f"seen: {error}; give the result of state_dict") from error
    return steps


def write_checkpoint(folder: str | os.PathLike[str], values: Mapping[str, Any], place: RankAndSize) -> None:
    """Write this rank's state to a file in a folder, and remove files of runs with other numbers of ranks.

    Raises HookConfigError for an address instead of a path, or OSError.
    """
    if "://" in str(folder):
        raise HookConfigError(
            f"folder: {folder} is not a path of this machine; give one that is mounted here"
        )
    rank, ranks = place
    path = Path(folder) / f"peelsum-rank-{rank}-of-{ranks}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    torch.save(values, temporary)
    temporary.replace(path)
    for (_, other_ranks), old_path in saved_files(folder).items():
        if other_ranks != ranks:
            old_path.unlink(missing_ok=True)  # other ranks remove it, too


def read_checkpoint(
    folder: str | os.PathLike[str], place: RankAndSize, group_place: RankAndSize, *, redistribute: bool
) -> Any:
    """Return this rank's state from a folder, or a list of the states in all files there.

    place: among all ranks, as in the files' names. group_place: among those that sum. The list is returned if
    this rank has no file of this group_place, but `redistribute` allows other ranks.
    Raises HookConfigError if neither is possible, or if a file is damaged.
    """
    paths = saved_files(folder)
    if place in paths:
        values = _loaded(paths[place])
        is_same = isinstance(values, Mapping) and (values.get("rank"), values.get("ranks")) == group_place
        if is_same or not redistribute:
            return values
    if not paths or not redistribute:
        counts = " and ".join(map(str, sorted({ranks for _, ranks in paths}))) or "no"
        raise HookConfigError(
            f"folder: {folder} has no state of rank {place[0]} of {place[1]}, but that of {counts} ranks; "
            "save it on every rank, and load that of other ranks by load(folder, redistribute=True)"
        )
    return [_loaded(path) for path in paths.values()]


def _loaded(path: Path) -> Any:
    """Return the values in a file. Raises HookConfigError if it is damaged, or OSError."""
    try:
        check_regular(path)
    except OSError as error:
        raise HookConfigError(f"folder: {path}: {error.strerror}; load another checkpoint") from None
    try:
        return torch.load(path, map_location="cpu", mmap=True)
    except OSError:
        raise
    except Exception as error:  # torch and pickle raise errors of many types, none with the file's name
        raise HookConfigError(
            f"folder: {path} is damaged ({type(error).__name__}), as when the disk was full; load another "
            "checkpoint"
        ) from error


def saved_files(folder: str | os.PathLike[str]) -> dict[RankAndSize, Path]:
    """Return the files that `write_checkpoint` wrote to a folder, by rank and number of ranks."""
    matches = [(_FILE.fullmatch(path.name), path) for path in sorted(Path(folder).glob("peelsum-rank-*.pt"))]
    return {(int(match[1]), int(match[2])): path for match, path in matches if match}


def _check(values: object, reducer: Reducer) -> None:
    """Raise HookConfigError unless `values` are a saved state of this version, with residuals if needed."""
    if not isinstance(values, Mapping):
        raise HookConfigError(
            f"values: a {type(values).__name__} is not a state; give the result of state_dict"
        )
    if values.get("version") != _VERSION:
        raise HookConfigError(
            f"version: {values.get('version')!r} is not supported; give a checkpoint of version {_VERSION}"
        )
    if ("residuals" in values) != reducer.keeps_residuals:
        has, needs = ("no residuals", "a") if reducer.keeps_residuals else ("residuals", "no")
        raise HookConfigError(
            f"compressor: the checkpoint has {has}; make the state with {needs} compressor or strategy"
        )
    strategy = values.get("strategy", {})
    if not isinstance(strategy, Mapping) or (
        strategy and not strategy.keys() >= {"of", "known", "estimates"}
    ):
        raise HookConfigError("strategy: is not that of a saved state; give the result of state_dict")


def _sources_for_rank(
    sources: Sequence[Mapping[str, Any]], place: RankAndSize
) -> Sequence[Mapping[str, Any]]:
    """Return the states of the old ranks whose residuals this rank takes: rank, rank + ranks, and so on.

    Raises HookConfigError unless `sources` are the states of every rank of a run, after the same step.
    """
    (rank, ranks), old_ranks = place, len(sources)
    places = [(values.get("rank"), values.get("ranks")) for values in sources]
    steps = [values.get("steps") for values in sources]
    complete = all((old_rank, old_ranks) in places for old_rank in range(old_ranks))
    if not complete or steps != steps[:1] * old_ranks:
        described = ", ".join(
            f"rank {old_rank} of {size} after {step} steps"
            for (old_rank, size), step in zip(places, steps, strict=True)
        )
        raise HookConfigError(
            f"values: are those of {described}; give those of every rank of one run and "
            "of one process_group, after the same step, and save those of another in a folder of its own"
        )
    return [sources[places.index((old_rank, old_ranks))] for old_rank in range(rank, old_ranks, ranks)]


def to_tensors(value: Any) -> Any:
    """Return a nested mapping with copies of its arrays as tensors; other values stay as they are."""
    if isinstance(value, Mapping):
        return {name: to_tensors(item) for name, item in value.items()}
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def to_arrays(value: Any) -> Any:
    """Return a nested mapping, with copies of its tensors as arrays.

    Raises AttributeError for other values.
    """
    if isinstance(value, Mapping):
        return {name: to_arrays(item) for name, item in value.items() if item is not None}
    return value.numpy().copy()

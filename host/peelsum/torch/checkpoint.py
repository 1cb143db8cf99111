"""The hook's state as plain numbers and tensors, which `torch.load` accepts by default, and its files.

History, decisions and what compressors keep are the same on all ranks. Residuals are each rank's own, so each
rank writes a file. Another number of ranks can share the residuals out: rank r takes those of the ranks r,
r + ranks, r + 2 ranks and so on, and adds them up.
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
from peelsum.allreduce.reducer import Reducer
from peelsum.compress import CompressError
from peelsum.torch.errors import HookConfigError

_VERSION = 3
_FILE = re.compile(r"peelsum-rank-(\d+)-of-(\d+)\.pt")
#: A rank and the number of ranks.
Place = tuple[int, int]


def place_in(group: dist.ProcessGroup | None) -> Place:
    """Return this process's place in a group; 0 of 1 without torch.distributed."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def saved(place: Place, steps: int, history: History, reducer: Reducer) -> dict[str, Any]:
    """Return a rank's place and number of steps, with copies of its history and of what its reducer keeps."""
    rank, ranks = place
    values = {"version": _VERSION, "rank": rank, "ranks": ranks, "steps": steps, "seen": history.saved()}
    return {name: _tensors(one) for name, one in (values | reducer.saved()).items()}


def loaded(
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]], place: Place, history: History, reducer: Reducer
) -> int:
    """Restore what `saved` returned at this place, or the list of what it returned at all places of a run.

    Return the number of steps.

    Residuals serve any compressor or strategy, but only a strategy continues its decisions.
    Raises HookConfigError if the values do not fit this state or this place.
    """
    of_all_ranks = isinstance(given, list | tuple) and len(given) > 0
    sources: Sequence[Any] = given if of_all_ranks else [given]  # type: ignore[assignment]  # what is no Mapping is refused
    for values in sources:
        _check(values, reducer)
    values = sources[0]
    if reducer.residuals and of_all_ranks:
        sources = _share(sources, place)
    elif reducer.residuals:
        _check_place(values, place)
    try:
        steps, seen = int(values["steps"]), _arrays(values.get("seen", {}))
        residuals = [_arrays(source.get("residuals", {})) for source in sources]
        reducer.restore({**values, "kept": _arrays(values.get("kept", {}))}, residuals)
    except CompressError as error:
        raise HookConfigError(str(error)) from error
    # torch raises RuntimeError, a number of steps that is infinite OverflowError.
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise HookConfigError(
            f"values: are not a saved state ({type(error).__name__}: {error}); give what state_dict returned"
        ) from error
    try:
        history.restore(seen)
    except ValueError as error:
        raise HookConfigError(f"seen: {error}; give what state_dict returned") from error
    return steps


def write(folder: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Write this rank's values to a file in a folder, and remove files of other numbers of ranks.

    Raises HookConfigError for an address instead of a path, or OSError.
    """
    if "://" in str(folder):
        raise HookConfigError(
            f"folder: {folder} is not a path of this machine; give one that is mounted here"
        )
    rank, ranks = place_in(None)
    path = Path(folder) / f"peelsum-rank-{rank}-of-{ranks}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    torch.save(values, temporary)
    temporary.replace(path)
    for (_, others), old in files(folder).items():
        if others != ranks:
            old.unlink(missing_ok=True)  # other ranks remove it, too


def read(folder: str | os.PathLike[str], *, redistribute: bool) -> Any:
    """Return this rank's values from a folder, or those of all ranks that wrote there, for `loaded`.

    redistribute: whether another number of ranks may have written them. Raises HookConfigError if there is no
    file of this rank, and `redistribute` is False or the folder has no files.
    """
    place, written = place_in(None), files(folder)
    if place in written:
        return torch.load(written[place], map_location="cpu", mmap=True)
    if not written or not redistribute:
        counts = " and ".join(map(str, sorted({ranks for _, ranks in written}))) or "no"
        raise HookConfigError(
            f"folder: {folder} has no state of rank {place[0]} of {place[1]}, but that of {counts} ranks; "
            "save it on every rank, and load that of other ranks by load(folder, redistribute=True)"
        )
    return [torch.load(path, map_location="cpu", mmap=True) for path in written.values()]


def files(folder: str | os.PathLike[str]) -> dict[Place, Path]:
    """Return the files that `write` wrote to a folder, by the places of their ranks."""
    matches = [(_FILE.fullmatch(path.name), path) for path in sorted(Path(folder).glob("peelsum-rank-*.pt"))]
    return {(int(match[1]), int(match[2])): path for match, path in matches if match}


def _check(values: object, reducer: Reducer) -> None:
    """Raise HookConfigError for what is not a saved state, or one of another kind."""
    if not isinstance(values, Mapping):
        raise HookConfigError(
            f"values: a {type(values).__name__} is not a state; give what state_dict returned"
        )
    if values.get("version") != _VERSION:
        raise HookConfigError(
            f"version: {values.get('version')!r} is not supported; give a checkpoint of version {_VERSION}"
        )
    if ("residuals" in values) != reducer.residuals:
        has, needs = ("no residuals", "a") if reducer.residuals else ("residuals", "no")
        raise HookConfigError(
            f"compressor: the checkpoint has {has}; make the state with {needs} compressor or strategy"
        )
    decided = values.get("strategy", {})
    if not isinstance(decided, Mapping) or (decided and not decided.keys() >= {"of", "known", "estimates"}):
        raise HookConfigError("strategy: is not that of a saved state; give what state_dict returned")


def _check_place(values: Mapping[str, Any], place: Place) -> None:
    """Raise HookConfigError for residuals of another rank, or of another number of ranks."""
    rank, ranks = values.get("rank"), values.get("ranks")
    if (rank, ranks) != place:
        raise HookConfigError(
            f"rank: the residuals are those of rank {rank} of {ranks}, and this is rank {place[0]} of "
            f"{place[1]}; save and load them on every rank, by state.save(folder) and state.load(folder)"
        )


def _share(sources: Sequence[Mapping[str, Any]], place: Place) -> Sequence[Mapping[str, Any]]:
    """Return the values of those ranks whose residuals this rank takes.

    Raises HookConfigError unless `sources` are those of every rank of a run, after the same step.
    """
    (rank, ranks), count = place, len(sources)
    places = [(values.get("rank"), values.get("ranks")) for values in sources]
    steps = [values.get("steps") for values in sources]
    if any((source, count) not in places for source in range(count)) or steps != steps[:1] * count:
        described = ", ".join(
            f"rank {place[0]} of {place[1]} after {step} steps"
            for place, step in zip(places, steps, strict=True)
        )
        raise HookConfigError(
            f"values: are those of {described}; give those of every rank of one run, after the same step"
        )
    return [sources[places.index((source, count))] for source in range(rank, count, ranks)]


def _tensors(value: Any) -> Any:
    """Return a value, with copies of its arrays as tensors."""
    if isinstance(value, Mapping):
        return {name: _tensors(one) for name, one in value.items()}
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def _arrays(value: Any) -> Any:
    """Return the mapping or array that `_tensors` was given. Raises AttributeError for anything else."""
    if isinstance(value, Mapping):
        return {name: _arrays(one) for name, one in value.items() if one is not None}
    return value.numpy().copy()

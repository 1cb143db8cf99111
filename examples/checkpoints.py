"""Checkpoints of the training examples: a file for each rank and step.

A rank may be lost after others have already written. So each keeps its last two checkpoints, and all continue
from the newest that every rank has.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from peelsum.torch import HookConfigError, SwitchAllreduceState


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _on_all_ranks(number: int, reduction: dist.ReduceOp.RedOpType) -> int:
    """Return the smallest or the largest of the ranks' numbers."""
    result = torch.tensor(number)
    if dist.is_initialized():
        dist.all_reduce(result, reduction)
    return int(result)


class Checkpoints:
    """One rank's checkpoints in a folder, which ranks may share. Without a folder it does nothing."""

    def __init__(
        self,
        folder: str | None,
        rank: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        state: SwitchAllreduceState | None,
    ) -> None:
        self._folder, self._rank = Path(folder) if folder else None, rank
        self._parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
        if state is not None:
            self._parts["hook"] = state

    def restore(self) -> int:
        """Restore the newest checkpoint that all ranks have; return its number of steps, or 0.

        Raises HookConfigError if the checkpoints are of another number of ranks or another model, or if only
        one of the two trainings sums over the switch.
        """
        newest = max(self._steps(), default=0)
        ranks = _ranks()
        step = _on_all_ranks(newest, dist.ReduceOp.MIN)
        # A rank without checkpoints may be new, or may have been lost before it wrote its first.
        ranks_before = self._read(newest).get("ranks", ranks) if newest else 0
        ranks_before = _on_all_ranks(ranks_before, dist.ReduceOp.MAX)
        if ranks_before not in (0, ranks):
            raise HookConfigError(
                f"checkpoint: {self._folder} is of a training of {ranks_before} ranks, and this is one of "
                f"{ranks}; start {ranks_before}, or give another folder"
            )
        if step:
            kept = self._read(step)
            self._check(self._path(step), "hook" in kept)
            try:
                for name, part in self._parts.items():
                    part.load_state_dict(kept[name])
            except RuntimeError:  # of torch, with a line for each parameter
                raise HookConfigError(
                    f"checkpoint: {self._path(step)} is of another model; continue with the options of that "
                    "training, or give another folder"
                ) from None
            torch.set_rng_state(kept["random"])
        return step

    def _read(self, step: int) -> dict[str, Any]:
        kept: dict[str, Any] = torch.load(self._path(step), map_location="cpu")
        return kept

    def save(self, step: int) -> None:
        """Write a checkpoint after `step` steps."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = {name: part.state_dict() for name, part in self._parts.items()}
        fresh = self._path(step).with_suffix(".new")
        torch.save(kept | {"random": torch.get_rng_state(), "ranks": _ranks()}, fresh)
        fresh.replace(self._path(step))
        for old in sorted(self._steps())[:-2]:
            self._path(old).unlink()

    def _check(self, path: Path, had_hook: bool) -> None:
        """Raise unless sums are made as before; else parameters would differ from uninterrupted training."""
        if had_hook != ("hook" in self._parts):
            before, now = ("with", "without") if had_hook else ("without", "with")
            raise HookConfigError(
                f"checkpoint: {path} is of a training {before} `--sum switch`, and this is one {now} it; "
                f"continue {before} it, or give another folder"
            )

    def _steps(self) -> list[int]:
        if self._folder is None:
            return []
        return [int(path.name.split(".")[1]) for path in self._folder.glob(f"rank{self._rank}.*.pt")]

    def _path(self, step: int) -> Path:
        assert self._folder is not None
        return self._folder / f"rank{self._rank}.{step}.pt"

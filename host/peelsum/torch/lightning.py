"""A strategy for Lightning, whose own DDPStrategy registers communication hooks on CUDA devices only."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch.nn.parallel import DistributedDataParallel

from peelsum.torch.hook import hook
from peelsum.torch.state import SwitchAllreduceState
from peelsum.torch.stats import HookStats


class SwitchStrategy(DDPStrategy):
    """DDPStrategy with the hook, on any device: `Trainer(strategy=SwitchStrategy(state))`.

    Every `log_every_n_steps` steps of the trainer, it logs `HookStats.metrics` of these steps, and shows
    `switch/saving` in the progress bar. Beside each checkpoint FILE of the trainer it saves the state, in the
    folder FILE.peelsum with a file for each rank, and loads it when `fit` resumes.
    redistribute: see `SwitchAllreduceState.load`. options: see DDPStrategy.
    """

    def __init__(self, state: SwitchAllreduceState, *, redistribute: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._state, self._logged, self._redistribute = state, HookStats(), redistribute

    def configure_ddp(self) -> None:
        """Wrap the model, and register the hook."""
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        self.model.register_comm_hook(self._state, hook)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], *rest: Any, **options: Any) -> Any:
        """Take a step, and log."""
        output = super().optimizer_step(optimizer, closure, *rest, **options)
        module = self.lightning_module
        assert module is not None
        every: int = module.trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by its connectors
        if (module.global_step + 1) % every == 0:
            before, self._logged = self._logged, self._state.stats()
            for name, number in self._logged.metrics(before).items():
                module.log(name, number, prog_bar=name == "switch/saving")
        return output

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        """Save a checkpoint, and the state unless the checkpoint has weights only."""
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if "optimizer_states" in checkpoint:
            self._state.save(_folder(filepath))

    def load_checkpoint(self, checkpoint_path: str | Path, *rest: Any, **options: Any) -> dict[str, Any]:
        """Load a checkpoint, and the state to go on with training."""
        checkpoint = super().load_checkpoint(checkpoint_path, *rest, **options)
        module = self.lightning_module
        if module is not None and module.trainer.state.fn == TrainerFn.FITTING:
            self._state.load_if_saved(_folder(checkpoint_path), redistribute=self._redistribute)
        return checkpoint

    def remove_checkpoint(self, filepath: str | Path) -> None:
        """Remove a checkpoint, and the state beside it."""
        super().remove_checkpoint(filepath)
        if self.is_global_zero:
            shutil.rmtree(_folder(filepath), ignore_errors=True)


def _folder(checkpoint: str | Path) -> str:
    """Return the folder of the states beside a checkpoint, or beside that to which it is a link."""
    path = str(checkpoint)
    return f"{path if '://' in path else Path(path).resolve()}.peelsum"

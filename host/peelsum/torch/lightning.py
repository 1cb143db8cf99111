"""A strategy for Lightning, whose own DDPStrategy registers communication hooks on CUDA devices only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from peelsum.torch.hook import hook
from peelsum.torch.state import SwitchAllreduceState
from peelsum.torch.stats import HookStats


class SwitchStrategy(DDPStrategy):
    """DDPStrategy with the hook, on any device: `Trainer(strategy=SwitchStrategy(state))`.

    Every `log_every_n_steps` steps of the trainer, it logs `HookStats.metrics` of these steps, and shows
    `switch/saving` in the progress bar. options: see DDPStrategy.
    """

    def __init__(self, state: SwitchAllreduceState, **options: Any) -> None:
        super().__init__(**options)
        self._state, self._logged = state, HookStats()

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

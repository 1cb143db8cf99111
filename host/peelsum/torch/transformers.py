"""A callback for the Trainer of Hugging Face's Transformers, whose arguments do not take a hook."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from peelsum.torch.errors import HookConfigError
from peelsum.torch.hook import hook
from peelsum.torch.state import SwitchAllreduceState
from peelsum.torch.stats import HookStats


class SwitchCallback(TrainerCallback):
    """Registers the hook on the trainer's DDP: `trainer.add_callback(SwitchCallback(trainer, state))`.

    Whenever the trainer logs, it passes `HookStats.metrics` of the steps since then to `trainer.log`, which
    also shows them in the progress bar. With each of the trainer's checkpoints it saves the state, in a file
    for each rank, and loads it when the trainer resumes. redistribute: see `SwitchAllreduceState.load`.
    """

    def __init__(self, trainer: Trainer, state: SwitchAllreduceState, *, redistribute: bool = False) -> None:
        self._trainer, self._state, self._logged = trainer, state, HookStats()
        self._hooked_model: DistributedDataParallel | None = None
        # No event has a checkpoint's folder, and there is no event for loading a checkpoint.
        save, load = trainer._save_optimizer_and_scheduler, trainer._load_optimizer_and_scheduler

        def save_with_state(folder: str) -> None:
            save(folder)
            state.save(folder)

        def load_with_state(folder: str | None) -> None:
            load(folder)
            if folder is not None:
                state.load_if_saved(folder, redistribute=redistribute)

        trainer._save_optimizer_and_scheduler = save_with_state  # type: ignore[method-assign, assignment]
        trainer._load_optimizer_and_scheduler = load_with_state  # type: ignore[method-assign, assignment]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Register the hook on the model that the trainer has wrapped. Raises HookConfigError without DDP."""
        model = self._trainer.model_wrapped
        model = getattr(model, "_orig_mod", model)  # of torch.compile
        if not isinstance(model, DistributedDataParallel):
            raise HookConfigError(
                f"trainer: its model is {type(model).__name__}, not DistributedDataParallel; start ranks by "
                "torchrun, on CPUs with TrainingArguments(use_cpu=True), and without FSDP or DeepSpeed"
            )
        if model is not self._hooked_model:  # a second `train` finds the same model
            model.register_comm_hook(self._state, hook)
            self._hooked_model = model

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log the metrics of the steps since the last call that logged, if there were any."""
        if control.should_log and self._logged.steps < (stats := self._state.stats()).steps:
            before, self._logged = self._logged, stats
            self._trainer.log(stats.metrics(before))

    on_epoch_end = on_step_end

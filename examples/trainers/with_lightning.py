"""Lightning: a strategy that registers the hook on every device, and logs what it saves."""

import os

import lightning
import torch
from task import OVER, RATE, Classifier, Trained, run, texts

from peelsum.torch import SwitchAllreduceState
from peelsum.torch.lightning import SwitchStrategy


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Classifier()

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


def train() -> Trained:
    state = SwitchAllreduceState(over=OVER)
    trainer = lightning.Trainer(
        strategy=SwitchStrategy(state),
        accelerator="cpu",
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        use_distributed_sampler=False,
        max_epochs=1,
        log_every_n_steps=5,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, texts())
    return Trained(module, state, trainer.progress_bar_metrics)


if __name__ == "__main__":
    run(train)

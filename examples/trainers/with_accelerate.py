"""Accelerate: the hook goes onto the prepared model."""

import torch
from accelerate import Accelerator
from task import OVER, RATE, Classifier, Texts, Trained, run
from torch.utils.data import DataLoader

from peelsum.torch import SwitchAllreduceState, hook


def train() -> Trained:
    accelerator = Accelerator(cpu=True)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer, texts = accelerator.prepare(model, optimizer, DataLoader(Texts()))
    state = SwitchAllreduceState(over=OVER)
    model.register_comm_hook(state, hook)
    for step, batch in enumerate(texts):
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        accelerator.log(state.stats().metrics(), step=step)
    return Trained(model, state, {})


if __name__ == "__main__":
    run(train)

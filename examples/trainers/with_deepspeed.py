"""DeepSpeed without ZeRO: the state averages the gradients that the engine leaves alone."""

import deepspeed
import torch
from task import OVER, RATE, Classifier, Trained, run, texts

from peelsum.torch import SwitchAllreduceState


def train() -> Trained:
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 0}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.enable_backward_allreduce = False
    state = SwitchAllreduceState(over=OVER)
    for step, batch in enumerate(texts()):
        engine.backward(engine(**batch)["loss"])
        state.average_gradients(model.parameters())
        engine.step()
        engine.monitor.write_events([(*metric, step) for metric in state.stats().metrics().items()])
    return Trained(model, state, {})


if __name__ == "__main__":
    run(train)

"""DeepSpeed's ZeRO over the process group; ZERO_STAGE chooses the stage, 1 to 3."""

import os

import deepspeed
import torch
import torch.distributed as dist
from task import OVER, RATE, Classifier, Trained, run, texts

import peelsum.torch  # noqa: F401 - registers the process group


def train() -> Trained:
    if not dist.is_initialized():
        dist.init_process_group("peelsum" if OVER == "switch" else "gloo")
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": int(os.environ.get("ZERO_STAGE", "3"))},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for batch in texts():
        engine.backward(engine(**batch)["loss"])
        engine.step()
    whole = Classifier()
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        whole.load_state_dict(model.state_dict())
    return Trained(whole, None, {})


if __name__ == "__main__":
    run(train)

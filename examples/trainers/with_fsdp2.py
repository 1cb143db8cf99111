"""FSDP2: every rank takes its shard from the exact average of the whole gradient."""

import torch
import torch.distributed as dist
from task import OVER, RATE, Classifier, Trained, run, texts
from torch.distributed.fsdp import fully_shard

from peelsum.torch import SwitchAllreduceState, fsdp_reduce_scatter


def train() -> Trained:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = Classifier()
    layers = (model.embedding, model.linear)
    for layer in (*layers, model):
        fully_shard(layer)
    state = SwitchAllreduceState(over=OVER, log_every=10)
    for layer in layers:
        layer.set_custom_reduce_scatter(fsdp_reduce_scatter(state))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in texts():
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    return Trained(model, state, state.stats().metrics())


if __name__ == "__main__":
    run(train)

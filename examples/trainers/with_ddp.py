"""DistributedDataParallel, to which the other examples' parameters are compared."""

import torch
import torch.distributed as dist
from task import OVER, RATE, Classifier, Trained, run, texts
from torch.nn.parallel import DistributedDataParallel

from peelsum.torch import SwitchAllreduceState, hook


def train() -> Trained:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = DistributedDataParallel(Classifier())
    state = SwitchAllreduceState(over=OVER, log_every=10)
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in texts():
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    return Trained(model, state, state.stats().metrics())


if __name__ == "__main__":
    run(train)

"""torchtitan's data parallelism, in a loop of our own: its Trainer needs a GPU, and this does not."""

import torch
import torch.distributed as dist
from task import OVER, RATE, Classifier, Trained, run, texts
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.models.llama3.infra.parallelize import apply_ddp

from peelsum.torch import SwitchAllreduceState, hook


def train() -> Trained:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = Classifier()
    apply_ddp(model, init_device_mesh("cpu", (dist.get_world_size(),)), enable_compile=False)
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

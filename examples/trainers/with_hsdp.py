"""HSDP: FSDP2 shards within a group, and the hook averages each shard over its replicas."""

import torch
import torch.distributed as dist
from task import OVER, RATE, Classifier, Trained, run, texts
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from peelsum.torch import SwitchAllreduceState, fsdp_hook


def train() -> Trained:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    shards = ranks // 2
    mesh = init_device_mesh("cpu", (ranks // shards, shards), mesh_dim_names=("replicate", "shard"))
    copies, mesh = mesh.get_group("replicate"), mesh["shard"]
    model = Classifier()
    layers = (model.embedding, model.linear)
    for layer in (*layers, model):
        fully_shard(layer, mesh=mesh)
    state = SwitchAllreduceState(copies, over=OVER, log_every=10)
    for layer in layers:
        layer.set_all_reduce_hook(fsdp_hook(state))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in texts():
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
    return Trained(model, state, state.stats().metrics())


if __name__ == "__main__":
    run(train)

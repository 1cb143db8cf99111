"""torchft: replica groups of one process each, REPLICA=0 and so on, any of which may end and start again."""

import hashlib
import os
import socket

import torch
from task import CLASSES, LENGTH, RATE, STEPS, WORDS, Classifier, Trained, parameters
from torch.distributed import TCPStore
from torchft import Manager, Optimizer

from peelsum.torch.torchft import DistributedDataParallel, ProcessGroupPeelsum


def train() -> Trained:
    host = socket.gethostname()
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    model = Classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=RATE)

    def state_dict() -> dict[str, object]:
        return {"model": model.state_dict(), "optimizer": sgd.state_dict()}

    def load_state_dict(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    group = ProcessGroupPeelsum()
    manager = Manager(
        pg=group,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        replica_id=f"replica_{os.environ['REPLICA']}",
        store_addr=host,
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, sgd)
    draw = torch.Generator().manual_seed(int(os.environ["REPLICA"]))
    while manager.current_step() < STEPS:
        words, labels = (torch.randint(n, (8, LENGTH), generator=draw) for n in (WORDS, CLASSES))
        optimizer.zero_grad()
        ddp(words, labels[:, 0])["loss"].backward()
        optimizer.step()
        print(f"step {manager.current_step()}: {manager.num_participants()} replicas", flush=True)
    group.shutdown()
    manager.shutdown()
    return Trained(model, None, {})


if __name__ == "__main__":
    bits = parameters(train().model).numpy().tobytes()
    print(f"parameters: {hashlib.sha256(bits).hexdigest()[:16]}", flush=True)

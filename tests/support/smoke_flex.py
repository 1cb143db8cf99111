import logging, sys, time
import torch, numpy as np
from torch_training import model, parameters, step_loss
from peelsum.torch import SwitchAllreduceState, hook
from peelsum.flexible import Flexible


def go(rank, over, steps, kw):
    if rank == 0:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(relativeCreated)d %(message)s")
    ddp = model()
    state = SwitchAllreduceState(over=over, names=ddp.module.named_parameters(), strategy=Flexible(**kw))
    ddp.register_comm_hook(state, hook)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.5)
    for step in range(steps):
        opt.zero_grad()
        step_loss(ddp, rank, step).backward()
        opt.step()
    s = state.stats().strategy
    state.close()
    return parameters(ddp), s


import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def big(rank, over, steps, kw, pause=0.0, cap=1.0):
    torch.set_num_threads(1)
    if rank == 0:
        logging.basicConfig(
            level=logging.DEBUG if kw.pop("debug", False) else logging.INFO,
            stream=sys.stderr,
            format="%(relativeCreated)d %(message)s",
        )
    else:
        kw.pop("debug", False)
    torch.manual_seed(1)
    m = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    ddp = DDP(m, bucket_cap_mb=cap)
    state = SwitchAllreduceState(over=over, names=m.named_parameters(), strategy=Flexible(**kw))
    ddp.register_comm_hook(state, hook)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(rank)
    T = torch.randn(256, 10, generator=torch.Generator().manual_seed(5))
    losses = []
    t0 = time.time()
    for step in range(steps):
        x = torch.randn(32, 256, generator=g)
        y = (x @ T).argmax(1)
        opt.zero_grad()
        l = nn.functional.cross_entropy(ddp(x), y)
        l.backward()
        opt.step()
        losses.append(float(l))
        time.sleep(pause)
    s = state.stats().strategy
    state.close()
    return parameters(ddp), s, losses, time.time() - t0

"""Ranks that train the subjects of `peelsum bench accuracy` by DDP and the hook, as users would."""

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.accuracy.methods import MOMENTUM, parse
from benchmarks.accuracy.subjects import make_subject
from benchmarks.accuracy.training import batches, dropout_seed
from peelsum.bench.train.worker import wrong_elements
from peelsum.torch import SwitchAllreduceState, hook
from peelsum.torch.backends import connect


def trained(rank, settings, over):
    """Each setting's parameters float32[n] after its steps, and the bytes of the hook's statistics."""
    backend = connect(over, None, None)
    outcome = [_trained(rank, setting, backend) for setting in settings]
    backend.close()
    return outcome


def _trained(rank, setting, backend):
    subject = make_subject(setting.model, setting.seed)
    method = parse(setting.method, setting.steps, setting.seed)
    mine = batches(subject, setting)[rank]
    options = {"names": subject.model.named_parameters(), "forms": "dense" if method.dense else "auto"}
    options |= {"compressor": method.compressor, "error_feedback": method.feedback}
    state = SwitchAllreduceState(over=backend, **options)
    ddp = DistributedDataParallel(subject.model)
    ddp.register_comm_hook(state, hook)
    optimizer = subject.make_optimizer(0.0 if method.momentum else MOMENTUM)
    for step in range(setting.steps):
        optimizer.zero_grad()
        torch.manual_seed(dropout_seed(setting.seed, step, rank))
        ddp(*next(mine)).backward()
        optimizer.step()
    sent = state.stats().wire_bytes
    state.close()
    return flat(subject.model), sent


def wrong_averages(rank):
    """What `bench train` counts of an average of two ranks: right, with other bits on a rank, and far off."""
    own, counts = torch.full((5,), 1.0 + rank), []
    for changed in (0.0, 1e-6 * rank, 1e-3):
        parameter = torch.zeros(5, requires_grad=True)
        parameter.grad = torch.full((5,), 1.5)
        parameter.grad[3] += changed
        counts.append(wrong_elements(parameter, own, 1e-5))
    return counts


def flat(model):
    """All parameters of a model, float32[n]."""
    return np.concatenate([one.detach().numpy().ravel() for one in model.parameters()])

"""The modules that every rank needs, loaded once by the server from which ranks are forked."""

# DDP and tests load these, in seconds.
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.optim  # noqa: F401
import torch_training  # noqa: F401

from peelsum.allreduce.history_loops import warm_up

warm_up()

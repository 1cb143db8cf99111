"""The modules that every rank needs, loaded once by the server from which ranks are forked."""

import torch._dynamo  # noqa: F401 - DDP loads it, in seconds
import torch_training  # noqa: F401

from peelsum.allreduce.history_loops import warm_up

warm_up()

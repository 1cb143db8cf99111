"""The modules that every rank needs, loaded once by the server from which ranks are forked."""

import numba_cache
import torch._dynamo  # noqa: F401 - DDP loads it, in seconds
import torch_training  # noqa: F401

from peelsum.allreduce.history_loops import warm_up

numba_cache.one_compiler_at_a_time()
warm_up()

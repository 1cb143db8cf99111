"""Programs of a launch in a random order: a device promises none, and the interpreter has only one."""

from contextlib import contextmanager

import numpy as np
from gpu_device import REAL
from triton.runtime.interpreter import interpreter_builder


@contextmanager
def shuffled(seed):
    """Let the interpreter run the programs of each launch in another order; on a device, change nothing."""
    if REAL:
        yield
        return
    rng, order, place = np.random.default_rng(seed), np.arange(1), interpreter_builder.set_grid_idx

    def set_grid_idx(x, y, z):
        nonlocal order
        if not x:
            order = rng.permutation(interpreter_builder.grid_dim[0])
        place(int(order[x]), y, z)

    interpreter_builder.set_grid_idx = set_grid_idx
    try:
        yield
    finally:
        del interpreter_builder.set_grid_idx

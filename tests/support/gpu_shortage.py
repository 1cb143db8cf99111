"""A device without room: torch's allocations fail with its own error, from a chosen one on."""

import threading
from contextlib import contextmanager

import torch
from gpu_device import DEVICE
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from peelsum.codec.gpu import launch


class Shortage(TorchDispatchMode):
    """Lets `first` allocations on the device succeed; the next one fails, or, if `lasting`, all further ones.

    Only operations of the thread that enters it count. Those inside a kernel of the interpreter do not.
    """

    def __init__(self, first, *, lasting=False):
        super().__init__()
        self._first, self._lasting = first, lasting
        #: Allocations so far.
        self.count = 0

    @property
    def struck(self):
        """Whether an allocation has failed."""
        return self.count > self._first

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if allocates(function, args, kwargs):
            self.count += 1
            if self.count == self._first + 1 or (self._lasting and self.struck):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 MiB. GPU 0 is full.")
        return function(*args, **kwargs)


def allocates(function, args, kwargs):
    """Return whether an operation of torch makes a tensor on the device. An empty one needs no room."""
    if args and args[0] == [0]:
        return False
    makes = any(str(one.type) == "Tensor" and one.alias_info is None for one in function._schema.returns)
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    device = kwargs.get("device") or (tensors[0].device if tensors else DEVICE)
    return makes and torch.device(device).type == DEVICE.type


@contextmanager
def kernels_apart():
    """Let kernels run outside of a `Shortage`, one at a time: the interpreter allocates, and has globals."""
    run, one_at_a_time = launch.run, threading.Lock()

    def launched(*arguments, **options):
        with one_at_a_time, _disable_current_modes():
            run(*arguments, **options)

    launch.run = launched
    try:
        yield
    finally:
        launch.run = run

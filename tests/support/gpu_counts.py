"""Count what a GPU would be asked to do: launches of kernels, copies, and times that the host waits for it.

Count also the calls of Python functions outside of launches, for which a device waits.

On a CPU, Triton's interpreter runs the kernels, and torch's operations do not wait; they are counted as they
would be on a device.
"""

import inspect
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import gpu_device  # before Triton is imported
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peelsum.codec.gpu import launch, memory

_TORCH = str(Path(torch.__file__).parent)
#: Methods that return a device's numbers to the host.
_READS = {"cpu", "tolist", "item", "__int__", "__bool__", "__float__", "__index__", "nonzero"}
#: Operations that allocate or look, and start no kernel.
_QUIET = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::_local_scalar_dense",
    "aten::set_",
}


class Counts:
    """What was counted: names of kernels and operations, and of what the host waited in."""

    def __init__(self):
        self.kernels = Counter()
        self.operations = Counter()
        self.waits = Counter()

    @property
    def launches(self):
        """Kernels of ours, and operations of torch, copies among them."""
        return self.kernels.total() + self.operations.total()

    def __str__(self):
        return f"{self.waits.total()} waits {dict(self.waits)}, {self.launches} launches, of them " + (
            f"{self.kernels.total()} kernels {dict(self.kernels)}, operations {dict(self.operations)}"
        )


class _Functions(TorchFunctionMode):
    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        masked = name in ("__getitem__", "__setitem__") and _has_mask(args[1])
        if name in _READS or masked:
            self.counts.waits["masked" if masked else name] += 1
            # Without a GPU, torch copies nothing.
            self.counts.operations["copy to the host"] += name == "cpu" and not gpu_device.REAL
        return function(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        schema = function._schema
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
        result = function(*args, **(kwargs or {}))
        if not is_view and schema.name not in _QUIET and _on_device(args, result):
            self.counts.operations[schema.name.removeprefix("aten::")] += 1
        return result


def calls_outside_launches(work):
    """Return how often `work` calls each Python function, by its file and name; a launch is one call.

    Those of torch do not count, of which a device takes more, nor those that poison memory in tests.
    """
    calls, run = Counter[str](), launch.run

    def profile(frame, event, argument):
        name = frame.f_code.co_filename
        if event == "call" and not name.endswith("poison.py") and not name.startswith(_TORCH):
            calls[f"{name}:{frame.f_code.co_name}"] += 1

    def launched(*arguments, **options):
        sys.setprofile(None)  # the interpreter of kernels calls many functions
        try:
            run(*arguments, **options)
        finally:
            sys.setprofile(profile)

    launch.run = launched
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        launch.run = run
    return calls


@contextmanager
def compiled_variants():
    """Yield the set of what Triton compiles for the launches inside: kernels, by types and by constants."""
    variants, run = set(), launch.run

    def launched(kernel, programs, *arguments, **options):
        constant = kernel.fn.__annotations__
        kinds = [
            value if name in constant else value.dtype if hasattr(value, "dtype") else abs(value) >= 2**31
            for name, value in zip(inspect.signature(kernel.fn).parameters, arguments, strict=True)
        ]
        if programs:
            variants.add((kernel.fn.__name__, *kinds, *options.items()))
        run(kernel, programs, *arguments, **options)

    launch.run = launched
    try:
        yield variants
    finally:
        launch.run = run


def _on_device(*several):
    """Return whether an operation is the device's: without a GPU, all are."""
    return not gpu_device.REAL or any(
        isinstance(one, torch.Tensor) and one.is_cuda for one in tree_leaves(several)
    )


def _has_mask(index):
    several = index if isinstance(index, tuple) else (index,)
    return any(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in several)


@contextmanager
def counted():
    """Count what this thread does inside the context."""
    counts, run, wait = Counts(), launch.run, memory.wait

    def launched(kernel, programs, *arguments, **options):
        counts.kernels[kernel.fn.__name__] += bool(programs)
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            run(kernel, programs, *arguments, **options)

    def waited(device):
        counts.waits["settle"] += 1
        wait(device)

    launch.run, memory.wait = launched, waited
    try:
        with _Functions(counts), _Operations(counts):
            yield counts
    finally:
        launch.run, memory.wait = run, wait

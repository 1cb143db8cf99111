"""Make the launches of several tensors at once: one launch of a kernel for all, with a row for each.

Strategy: inside `Together`, launches are kept instead of made, those of each tensor in a lane. At its end, the
lanes are gone through in step. What several lanes have to launch next is one launch, if it is the same
kernel: its arguments are the rows of a table (`gpu_table_kernels`). The tables of all launches are one copy
to the device. Memory that is to be zeroed, and copies to the host, are each one operation, too.

So a lane must not use what it has kept in any other way: `flush` makes all launches that are kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peelsum.codec.gpu_table_kernels import COLUMNS, FIRST, PROGRAMS

_CLEAR, _COPY = "clear", "copy"


class _Current(threading.local):
    """The lane into which this thread's launches go, of which `Together`; None if they are made at once."""

    def __init__(self) -> None:
        self.lane: deque[_Kept] | None = None
        self.together: Together | None = None


_CURRENT = _Current()


@dataclass(frozen=True, eq=False)
class _Kept:
    """A launch that is kept."""

    key: Hashable
    """Launches of the same key can be one launch."""
    arguments: Sequence[Any]
    """A kernel's arguments that a table can have, or tensors."""
    kernel: Any = None
    programs: int = 0
    constants: tuple[Any, ...] = ()
    options: Any = None


class Copy:
    """A copy to the host's memory, pinned if the device is a GPU."""

    def __init__(self) -> None:
        self.host: Tensor | None = None
        """The copy, once it has begun."""


class Together:
    """Several lanes of launches; run: launches a kernel, given programs, arguments and options."""

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run
        self._lanes: list[deque[_Kept]] = []

    @contextmanager
    def lane(self) -> Iterator[None]:
        """Keep this thread's launches, in a lane of their own, inside the context."""
        lane: deque[_Kept] = deque()
        self._lanes.append(lane)
        _CURRENT.lane, _CURRENT.together = lane, self
        try:
            yield
        finally:
            _CURRENT.lane = _CURRENT.together = None

    def flush(self) -> None:
        """Make all launches that are kept."""
        groups = list(_in_step(self._lanes))
        tables = _tables(groups)
        for group in groups:
            if group[0].kernel is not None:
                self._launch(group, tables)
            elif len(group[0].arguments) == 1:
                _clear(group)
            else:
                _copy(group)

    def _launch(self, group: Sequence[_Kept], tables: deque[Tensor]) -> None:
        one = group[0]
        if len(group) == 1:
            tabled = (None, 0) if has_table(one.kernel) else ()
            self._run(one.kernel, one.programs, *tabled, *one.arguments, *one.constants, **one.options)
            return
        given = [None if argument is None else 0 for argument in one.arguments]
        table, programs = tables.popleft(), sum(each.programs for each in group)
        self._run(one.kernel, programs, table, len(table), *given, *one.constants, **one.options)


def has_table(kernel: Any) -> bool:
    """Return whether a kernel can take several launches' arguments from a table."""
    first: str = kernel.arg_names[0]
    return first == "table"


def keep(kernel: Any, programs: int, arguments: Sequence[Any], options: Any) -> bool:
    """Keep a kernel's launch; return False if launches are made at once."""
    if _CURRENT.lane is None:
        return False
    if not programs:
        return True
    count = len(kernel.arg_names) - len(kernel.fn.__annotations__)  # only constants are annotated
    tabled = has_table(kernel)
    count -= 2 * tabled
    numbers, constants = arguments[:count], tuple(arguments[count:])
    absent = tuple(argument is None for argument in numbers)
    key: Hashable = (kernel.fn, constants, absent, tuple(sorted(options.items()))) if tabled else object()
    _CURRENT.lane.append(_Kept(key, numbers, kernel, programs, constants, options))
    return True


def clear(tensor: Tensor) -> None:
    """Zero a tensor."""
    if _CURRENT.lane is None:
        tensor.zero_()
    elif tensor.numel():
        _CURRENT.lane.append(_Kept((_CLEAR, tensor.dtype), [tensor]))


def copied(array: Tensor) -> Copy:
    """Copy an array to the host."""
    copy = Copy()
    kept = _Kept((_COPY, array.dtype), [array.view(-1), copy])
    if _CURRENT.lane is None:
        _copy([kept])
    else:
        _CURRENT.lane.append(kept)
    return copy


def flush() -> None:
    """Make all launches that this thread keeps."""
    if _CURRENT.together is not None:
        _CURRENT.together.flush()


def pinned(like: Tensor) -> Tensor:
    """Allocate memory on the host for a copy to or from a device. Torch keeps it, and reuses it in time."""
    return torch.empty(like.numel(), dtype=like.dtype, pin_memory=like.is_cuda)


def _in_step(lanes: Sequence[deque[_Kept]]) -> Iterator[list[_Kept]]:
    """Take all launches from the lanes; yield those that can be one launch, in an order that all lanes keep."""
    left = [lane for lane in lanes if lane]
    while left:
        key, group = max(left, key=len)[0].key, list[_Kept]()
        for lane in left:
            while lane and lane[0].key == key:
                group.append(lane.popleft())
                if group[0].kernel is not None:
                    break  # the lane's next launch may read what this one writes
        yield group
        left = [lane for lane in left if lane]


def _tables(groups: Sequence[Sequence[_Kept]]) -> deque[Tensor]:
    """Return the table int64[rows, COLUMNS] of each launch that needs one, in one copy to the device."""
    shared = [group for group in groups if group[0].kernel is not None and len(group) > 1]
    if not shared:
        return deque()
    table = np.concatenate([_table(group) for group in shared])
    device = next(one.device for one in shared[0][0].arguments if isinstance(one, Tensor))
    there = torch.empty(table.size, dtype=torch.int64, device=device)
    staged = pinned(there)
    staged.numpy()[:] = table.ravel()
    there.copy_(staged, non_blocking=True)
    return deque(torch.split(there.view(-1, COLUMNS), [len(group) for group in shared]))


def _table(group: Sequence[_Kept]) -> NDArray[np.int64]:
    table = np.zeros((len(group), COLUMNS), np.int64)
    for row, one in zip(table, group, strict=True):
        cells = [arg.data_ptr() if isinstance(arg, Tensor) else arg or 0 for arg in one.arguments]
        row[: len(cells)], row[PROGRAMS] = cells, one.programs
    table[1:, FIRST] = np.cumsum(table[:-1, PROGRAMS])
    return table


def _clear(group: Sequence[_Kept]) -> None:
    tensors = [one.arguments[0] for one in group]
    if len(tensors) == 1:
        tensors[0].zero_()
    else:
        torch._foreach_zero_(tensors)


def _copy(group: Sequence[_Kept]) -> None:
    """Begin to copy arrays to the host, as one: those of several lanes are joined on the device before."""
    arrays = [one.arguments[0] for one in group]
    joined = arrays[0] if len(arrays) == 1 else torch.cat(arrays)
    host = pinned(joined)
    host.copy_(joined, non_blocking=True)
    for one, part in zip(group, torch.split(host, [array.numel() for array in arrays]), strict=True):
        one.arguments[1].host = part

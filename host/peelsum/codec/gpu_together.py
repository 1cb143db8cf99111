"""Make the launches of several tensors at once: one launch of a kernel for all, with a row for each.

Strategy: inside `Together`, launches are kept instead of made, those of each tensor in a lane. At its end,
the lanes are gone through in step. What several lanes have to launch next is one launch, if it is the same
kernel with the same constants: the other arguments are the rows of a table (`gpu_table_kernels`). The tables
of all launches are one copy to the device. Arrays that are zeroed or copied are one operation, too.

What is kept has not been computed. So before torch reads it, `flush` makes the launches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peelsum.codec.gpu_table_kernels import COLUMNS, FIRST, PROGRAMS

#: Numbers that are kept on devices, and how many of them are copied there at once.
_NUMBERS_KEPT, _NUMBERS_AT_ONCE = 1024, 64
#: Programs of a cooperative launch for each SM. All must run at once: an SM's 65,536 registers are 128 for
#: each of four times 128 threads.
_PROGRAMS_PER_SM = 4
#: The most tensors of a cooperative launch, so that each has a program: a GPU of 16 SMs runs as many.
_COOPERATING_TENSORS = 64
_COOPERATIVE = "launch_cooperative_grid"
#: A launch of as many programs is made alone: it takes longer than a launch costs, and reads faster so.
_MANY_PROGRAMS = 2048


class _Current(threading.local):
    """The lane into which this thread's launches go, of which `Together`; None if they are made at once."""

    def __init__(self) -> None:
        self.lane: deque[_Kept] | None = None
        self.together: Together | None = None


_CURRENT = _Current()


class _Number(NamedTuple):
    """A number on a device, for a stream: streams do not wait for each other."""

    value: int
    dtype: torch.dtype
    device: torch.device
    stream: int


#: Numbers that are on their devices: later launches need no copy.
_NUMBERS: dict[_Number, Tensor] = {}


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
    make: Callable[[Sequence[_Kept]], None] | None = None
    """Makes several at once, if it is not a kernel's."""


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
        #: The numbers that are not on the device yet, and where they will be.
        self.numbers: dict[_Number, Tensor] = {}
        self._room: Tensor | None = None

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

    def placed(self, number: _Number) -> Tensor:
        """Return where a number will be on its device, before what is launched later."""
        at = len(self.numbers) % _NUMBERS_AT_ONCE
        if self._room is None or not at:
            self._room = torch.empty(_NUMBERS_AT_ONCE, dtype=torch.int64, device=number.device)
        there = self._room[at : at + 1].view(number.dtype)[:1]  # the lower half, if it is an int32
        self.numbers[number] = there
        return there

    def flush(self) -> None:
        """Make all launches that are kept."""
        groups = list(_in_step(self._lanes))
        tables = _tables(groups)
        self._send_numbers()
        for group in groups:
            if group[0].kernel is not None:
                self._launch(group, tables)
            else:
                group[0].make(group)  # type: ignore[misc]

    def _send_numbers(self) -> None:
        numbers, self.numbers, self._room = self.numbers, {}, None
        for begin in range(0, len(numbers), _NUMBERS_AT_ONCE):
            part = list(numbers.items())[begin : begin + _NUMBERS_AT_ONCE]
            there = part[0][1]
            room = there.view(torch.int32).as_strided((2 * len(part),), (1,)).view(torch.int64)
            _send(np.array([number.value for number, _ in part], np.int64), room)
        if len(_NUMBERS) > _NUMBERS_KEPT:
            _NUMBERS.clear()
        _NUMBERS.update(numbers)

    def _launch(self, group: Sequence[_Kept], tables: deque[Tensor]) -> None:
        one = group[0]
        if len(group) == 1:
            tabled = (None, 0) if has_table(one.kernel) else ()
            self._run(one.kernel, one.programs, *tabled, *one.arguments, *one.constants, **one.options)
            return
        given = [None if argument is None else 0 for argument in one.arguments]
        table, programs = tables.popleft(), sum(_programs(group))
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
    key: Hashable = object()
    if tabled and programs < _MANY_PROGRAMS:
        key = kernel.fn, constants, absent, tuple(sorted(options.items()))
    _CURRENT.lane.append(_Kept(key, numbers, kernel, programs, constants, options))
    return True


def clear(tensor: Tensor) -> None:
    """Zero a tensor."""
    if _CURRENT.lane is None:
        tensor.zero_()
    elif tensor.numel():
        _CURRENT.lane.append(_Kept(("clear", tensor.dtype), [tensor], make=_clear))


def drop_signs_of_zeros(values: Tensor) -> None:
    """Replace each -0.0 by 0.0."""
    if _CURRENT.lane is None:
        values += 0.0
    else:
        _CURRENT.lane.append(_Kept(("signs", values.dtype), [values], make=_drop_signs_of_zeros))


def copy(source: Tensor, into: Tensor) -> None:
    """Copy a tensor to another on the same device."""
    if _CURRENT.lane is None:
        into.copy_(source)
    else:
        _CURRENT.lane.append(_Kept(("copy", source.dtype), [into, source], make=_copy))


def copied(array: Tensor) -> Copy:
    """Copy an array to the host."""
    begun = Copy()
    kept = _Kept(("to host", array.dtype), [array.view(-1), begun], make=_copy_to_host)
    if _CURRENT.lane is None:
        _copy_to_host([kept])
    else:
        _CURRENT.lane.append(kept)
    return begun


def number(value: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a number as int64[1] or int32[1] on a device. It is kept there for later calls."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    wanted, together = _Number(value, dtype, device, stream), _CURRENT.together
    there = _NUMBERS.get(wanted)
    if there is None and together is not None:
        there = together.numbers.get(wanted)
        return together.placed(wanted) if there is None else there
    if there is None:
        there = _NUMBERS[wanted] = torch.full((1,), value, dtype=dtype, device=device)
    return there


def cooperating(device: torch.device) -> int:
    """Return how many programs of a cooperative launch all run at the same time."""
    if device.type != "cuda":
        return 1  # the interpreter runs them one after the other
    return _PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count


def flush() -> None:
    """Make all launches that this thread keeps."""
    if _CURRENT.together is not None:
        _CURRENT.together.flush()


def pinned(like: Tensor) -> Tensor:
    """Allocate memory on the host for a copy to or from a device. Torch keeps it, and reuses it in time."""
    return torch.empty(like.numel(), dtype=like.dtype, pin_memory=like.is_cuda)


def _programs(group: Sequence[_Kept]) -> list[int]:
    """Return the programs of several launches that are one. Those of a cooperative one must run at once."""
    if not group[0].options.get(_COOPERATIVE):
        return [one.programs for one in group]
    most = max(1, cooperating(_device(group[0])) // len(group))
    return [min(one.programs, most) for one in group]


def _device(launch: _Kept) -> torch.device:
    return next(one.device for one in launch.arguments if isinstance(one, Tensor))


def _in_step(lanes: Sequence[deque[_Kept]]) -> Iterator[list[_Kept]]:
    """Take all launches from the lanes; yield those that can be one. Each lane keeps its order."""
    left = [lane for lane in lanes if lane]
    while left:
        key, group = max(left, key=len)[0].key, list[_Kept]()
        for lane in left:
            while lane and lane[0].key == key:
                if len(group) == _COOPERATING_TENSORS and group[0].options.get(_COOPERATIVE):
                    break
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
    there = torch.empty(table.size, dtype=torch.int64, device=_device(shared[0][0]))
    _send(table.ravel(), there)
    return deque(torch.split(there.view(-1, COLUMNS), [len(group) for group in shared]))


def _table(group: Sequence[_Kept]) -> NDArray[np.int64]:
    table = np.zeros((len(group), COLUMNS), np.int64)
    for row, one, programs in zip(table, group, _programs(group), strict=True):
        cells = [arg.data_ptr() if isinstance(arg, Tensor) else arg or 0 for arg in one.arguments]
        row[: len(cells)], row[PROGRAMS] = cells, programs
    table[1:, FIRST] = np.cumsum(table[:-1, PROGRAMS])
    return table


def _clear(group: Sequence[_Kept]) -> None:
    tensors = [one.arguments[0] for one in group]
    if len(tensors) == 1:
        tensors[0].zero_()
    else:
        torch._foreach_zero_(tensors)


def _drop_signs_of_zeros(group: Sequence[_Kept]) -> None:
    torch._foreach_add_([one.arguments[0] for one in group], 0.0)


def _copy(group: Sequence[_Kept]) -> None:
    if len(group) == 1:
        into, source = group[0].arguments
        into.copy_(source)
    else:
        torch._foreach_copy_([one.arguments[0] for one in group], [one.arguments[1] for one in group])


def _send(array: NDArray[np.int64], there: Tensor) -> None:
    """Copy an array to the device, through pinned memory, which torch keeps and reuses in time."""
    staged = pinned(there)
    staged.numpy()[:] = array
    there.copy_(staged, non_blocking=True)


def _copy_to_host(group: Sequence[_Kept]) -> None:
    """Begin to copy arrays to the host, as one: those of several lanes are joined on the device before."""
    arrays = [one.arguments[0] for one in group]
    joined = arrays[0] if len(arrays) == 1 else torch.cat(arrays)
    host = pinned(joined)
    host.copy_(joined, non_blocking=True)
    for one, part in zip(group, torch.split(host, [array.numel() for array in arrays]), strict=True):
        one.arguments[1].host = part

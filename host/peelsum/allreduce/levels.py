"""The exponent fields of tensors' blocks in past steps, end to end for tensors that are summed together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.segments import ROW, Table

#: A tensor's name, and its number of elements.
Key = tuple[str, int]
_Levels = NDArray[np.int32]
#: Columns of a saved array before the fields: elements, and elements of a block.
_HEAD = 2


class _Part(NamedTuple):
    block: int
    """Elements of a block."""
    levels: _Levels


class Levels:
    """int32[blocks] for each tensor: a block's field in its last step with a non-zero, or 0.

    If the field has fallen, it is the mean of that and of what was kept before. No field is kept that is far
    above the largest of the tensor's last step with a non-zero.
    """

    def __init__(self) -> None:
        #: The part of each tensor, in the array of the tensors that it was last summed with.
        self._parts: dict[Key, _Part] = {}
        self._together: dict[tuple[Key, ...], tuple[Table, _Levels]] = {}

    def of(self, keys: tuple[Key, ...], table: Table) -> _Levels:
        """Return those of a table's blocks, to be changed in place. Blocks of another size are converted."""
        kept = self._together.get(keys)
        if kept is not None and (kept[0] is table or np.array_equal(kept[0].block, table.block)):
            return kept[1]
        levels = np.zeros(int(table.blocks[-1]), np.int32)
        self._together = {old: one for old, one in self._together.items() if set(old).isdisjoint(keys)}
        for s, key in enumerate(keys):
            part = _Part(int(table.block[s]), levels[table.blocks[s] : table.blocks[s + 1]])
            if key in self._parts:
                part.levels[:] = _resized(self._parts[key], part.block, len(part.levels))
            self._parts[key] = part
        self._together[keys] = table, levels
        return levels

    def forget(self, key: Key) -> None:
        """Forget a tensor."""
        self._parts.pop(key, None)
        self._together = {keys: one for keys, one in self._together.items() if key not in keys}

    def saved(self) -> dict[str, NDArray[np.int32]]:
        """Return an array for each name: for each of its sizes the elements, those of a block, and fields."""
        found: dict[str, list[NDArray[np.int32]]] = {}
        for (name, elements), part in self._parts.items():
            head = np.array([elements, part.block], np.int64).view(np.int32)
            found.setdefault(name, []).append(np.concatenate([head, part.levels]))
        return {name: np.concatenate(ones) for name, ones in found.items()}

    @classmethod
    def restored(cls, values: Mapping[str, NDArray[np.int32]]) -> Levels:
        """Return what was `saved`. Raises ValueError for an array that is not such a one."""
        levels = cls()
        for name, rest in values.items():
            if rest.ndim != 1 or rest.dtype != np.int32:
                raise ValueError(f"{name!r} has an array {rest.dtype}{list(rest.shape)}, not int32[fields]")
            while rest.size:
                elements, block = (
                    rest[: 2 * _HEAD].copy().view(np.int64).tolist() if rest.size > 2 * _HEAD else (0, 0)
                )
                end = 2 * _HEAD + (-(-elements // block) if block >= ROW else 0)
                own = rest[2 * _HEAD : end]
                if elements < 1 or block & block - 1 or rest.size < end or own.size < 1 or _beyond(own):
                    raise ValueError(f"{name!r} has {rest.size} fields that are not those of its blocks")
                levels._parts[name, elements] = _Part(block, own.copy())
                rest = rest[end:]
        return levels


def _beyond(levels: _Levels) -> bool:
    return int(levels.min()) < 0 or int(levels.max()) > 255


def _resized(part: _Part, block: int, count: int) -> _Levels:
    """Return the fields of blocks of another size: of larger ones, the largest that they cover."""
    if block >= part.block:
        return np.maximum.reduceat(part.levels, np.arange(0, len(part.levels), block // part.block))
    return part.levels[np.arange(count) // (part.block // block)]

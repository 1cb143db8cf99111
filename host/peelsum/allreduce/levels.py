"""The exponent fields of tensors' blocks in past steps: one array for the tensors of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.segments import ROW, SegmentTable

#: A tensor's name, and its number of elements.
Key = tuple[str, int]
_Exponents = NDArray[np.int32]
#: Columns of a saved array before the fields: elements, and elements of a block.
_HEAD = 2


class _TensorExponents(NamedTuple):
    block: int
    """Elements of a block."""
    fields: _Exponents
    """int32[blocks]: their exponent fields."""


class BlockExponents:
    """For each tensor, its blocks' exponent fields in their last steps with a non-zero, or 0: int32[blocks].

    If a block's field falls, the mean of the old and the new one is kept. No field is kept that is far above
    the largest one of the tensor's last step with a non-zero.
    """

    def __init__(self) -> None:
        #: The fields of each tensor: a view of the array of the step with which it was last summed.
        self._parts: dict[Key, _TensorExponents] = {}
        #: The arrays of steps, by the keys of their tensors.
        self._steps: dict[tuple[Key, ...], tuple[SegmentTable, _Exponents]] = {}

    def of(self, keys: tuple[Key, ...], table: SegmentTable) -> _Exponents:
        """Return the fields of a table's blocks, int32[blocks], which the caller may change in place.

        keys: of the tensors. If a tensor had blocks of another size, its fields are converted.
        """
        cached = self._steps.get(keys)
        if cached is not None and (cached[0] is table or np.array_equal(cached[0].block, table.block)):
            return cached[1]
        fields = np.zeros(int(table.blocks[-1]), np.int32)
        self._steps = {others: step for others, step in self._steps.items() if set(others).isdisjoint(keys)}
        for s, key in enumerate(keys):
            part = _TensorExponents(int(table.block[s]), fields[table.blocks[s] : table.blocks[s + 1]])
            if key in self._parts:
                part.fields[:] = _resized(self._parts[key], part.block, len(part.fields))
            self._parts[key] = part
        self._steps[keys] = table, fields
        return fields

    def forget(self, key: Key) -> None:
        """Forget a tensor."""
        self._parts.pop(key, None)
        self._steps = {keys: step for keys, step in self._steps.items() if key not in keys}

    def saved(self) -> dict[str, NDArray[np.int32]]:
        """Return an array for each name: for each of its sizes the elements, those of a block, and fields."""
        arrays: dict[str, list[NDArray[np.int32]]] = {}
        for (name, elements), part in self._parts.items():
            head = np.array([elements, part.block], np.int64).view(np.int32)
            arrays.setdefault(name, []).append(np.concatenate([head, part.fields]))
        return {name: np.concatenate(sizes) for name, sizes in arrays.items()}

    @classmethod
    def restored(cls, values: Mapping[str, NDArray[np.int32]]) -> BlockExponents:
        """Return the object of which `values` were `saved`. Raises ValueError for other arrays."""
        levels = cls()
        for name, rest in values.items():
            if rest.ndim != 1 or rest.dtype != np.int32:
                raise ValueError(f"{name!r} has an array {rest.dtype}{list(rest.shape)}, not int32[fields]")
            while rest.size:
                elements, block = (
                    rest[: 2 * _HEAD].copy().view(np.int64).tolist() if rest.size > 2 * _HEAD else (0, 0)
                )
                end = 2 * _HEAD + (-(-elements // block) if block >= ROW else 0)
                fields = rest[2 * _HEAD : end]
                if elements < 1 or block & block - 1 or rest.size < end or not _valid(fields):
                    raise ValueError(f"{name!r} has {rest.size} fields that are not those of its blocks")
                levels._parts[name, elements] = _TensorExponents(block, fields.copy())
                rest = rest[end:]
        return levels


def _valid(fields: _Exponents) -> bool:
    """Return whether there are any fields, and all are exponent fields of float32."""
    return fields.size > 0 and int(fields.min()) >= 0 and int(fields.max()) <= 255


def _resized(part: _TensorExponents, block: int, count: int) -> _Exponents:
    """Return `count` fields for blocks of another size: for larger blocks, the largest field of each."""
    if block >= part.block:
        return np.maximum.reduceat(part.fields, np.arange(0, len(part.fields), block // part.block))
    return part.fields[np.arange(count) // (part.block // block)]

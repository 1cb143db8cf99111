"""Entities of indirect counters and registers: a Write sets one cell, a Read returns one or all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from finsy.proto import p4d, p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime.info import CellsInfo, PipelineInfo
from peelsum.softswitch.p4runtime.status import Code, RequestError, invalid
from peelsum.softswitch.p4runtime.values import to_bytes, to_int


@dataclass
class CellEntries:
    """The counters of one pipeline, or its registers, as `kind` says."""

    kind: str
    declared: Mapping[int, CellsInfo]
    state: Mapping[str, Any]
    """The switch's counters or registers, by name."""
    decode: Callable[[Any, CellsInfo], tuple[int, ...]]
    """Returns the values that an entry writes to a cell."""
    encode: Callable[[int, p4r.Index, Any], Any]
    """Returns the entry of a cell, given the array's id, the cell's index and its value."""

    def write(self, kind: p4r.Update.Type.ValueType, entry: Any) -> None:
        """Set one cell. Raises RequestError."""
        cells = self._find(getattr(entry, f"{self.kind}_id"))
        if kind != p4r.Update.MODIFY:
            raise invalid(f"{cells.name}: cells cannot be inserted or deleted; modify them")
        if not entry.HasField("index"):
            raise invalid(f"{cells.name}: index is missing; give the cell's index")
        index = _checked_index(entry.index.index, cells)
        self.state[cells.name].write(index, *self.decode(entry, cells))

    def read(self, selector: Any) -> Iterator[Any]:
        """Return the entries that `selector` selects now: a cell, all cells of an array, or all for id 0."""
        array_id = getattr(selector, f"{self.kind}_id")
        arrays = []
        for cells in [self._find(array_id)] if array_id else self.declared.values():
            first, end = 0, cells.size
            if selector.HasField("index"):
                first = _checked_index(selector.index.index, cells)
                end = first + 1
            arrays.append((cells.id, first, self.state[cells.name].values()[first:end]))
        encode = self.encode
        return (
            encode(cells_id, p4r.Index(index=index), value)
            for cells_id, first, values in arrays
            for index, value in enumerate(values.tolist(), first)
        )

    def _find(self, cells_id: int) -> CellsInfo:
        cells = self.declared.get(cells_id)
        if cells is None:
            raise invalid(f"{self.kind}_id: no {self.kind} {cells_id:#x} in the P4Info; use one of its ids")
        return cells


def counters(info: PipelineInfo, switch: Switch) -> CellEntries:
    """Return a pipeline's indirect counters."""

    def decode(entry: p4r.CounterEntry, cells: CellsInfo) -> tuple[int, ...]:
        if not entry.HasField("data"):
            raise invalid(f"counter {cells.name}: data is missing; give packets and bytes")
        return counter_values(entry.data, cells.name)

    def encode(cells_id: int, index: p4r.Index, value: list[int]) -> p4r.CounterEntry:
        data = p4r.CounterData(packet_count=value[0], byte_count=value[1])
        return p4r.CounterEntry(counter_id=cells_id, index=index, data=data)

    return CellEntries("counter", info.counters, switch.counters, decode, encode)


def registers(info: PipelineInfo, switch: Switch) -> CellEntries:
    """Return a pipeline's registers."""

    def decode(entry: p4r.RegisterEntry, cells: CellsInfo) -> tuple[int, ...]:
        if entry.data.WhichOneof("data") != "bitstring":
            raise invalid(f"register {cells.name}: data must be a bitstring")
        return (to_int(entry.data.bitstring, cells.bits, f"register {cells.name}"),)

    def encode(cells_id: int, index: p4r.Index, value: int) -> p4r.RegisterEntry:
        data = p4d.P4Data(bitstring=to_bytes(value))
        return p4r.RegisterEntry(register_id=cells_id, index=index, data=data)

    return CellEntries("register", info.registers, switch.registers, decode, encode)


def counter_values(data: p4r.CounterData, name: str) -> tuple[int, int]:
    """Return packets and bytes of a counter's data. Raises RequestError if one is negative."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(
            f"counter of {name}: {min(data.packet_count, data.byte_count)} is negative; use 0 or more"
        )
    return data.packet_count, data.byte_count


def _checked_index(index: int, cells: CellsInfo) -> int:
    if not 0 <= index < cells.size:
        raise RequestError(
            Code.OUT_OF_RANGE, f"{cells.name}: index {index} is not below its size {cells.size}"
        )
    return index

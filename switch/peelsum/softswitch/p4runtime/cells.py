"""Indirect counters and registers: cells that are read one by one or all at once, and modified one by one."""

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
class Cells:
    """The counters or the registers of one pipeline, as `kind` says."""

    kind: str
    declared: Mapping[int, CellsInfo]
    state: Mapping[str, Any]
    """The switch's, by name."""
    decode: Callable[[Any, CellsInfo], tuple[int, ...]]
    """Returns what an entry writes to a cell."""
    encode: Callable[[int, p4r.Index, Any], Any]
    """Returns the entry of a cell, from the array's id, the cell's index and its value."""

    def write(self, kind: p4r.Update.Type.ValueType, entry: Any) -> None:
        """Set one cell. Raises RequestError."""
        cells = self._find(getattr(entry, f"{self.kind}_id"))
        if kind != p4r.Update.MODIFY:
            raise invalid(f"{cells.name}: cells cannot be inserted or deleted; modify them")
        if not entry.HasField("index"):
            raise invalid(f"{cells.name}: index is missing; give the cell's index")
        index = _checked(entry.index.index, cells)
        self.state[cells.name].write(index, *self.decode(entry, cells))

    def read(self, wanted: Any) -> Iterator[Any]:
        """Return the cells that `wanted` selects now: one, those of one array, or all for id 0."""
        wanted_id = getattr(wanted, f"{self.kind}_id")
        found = []
        for cells in [self._find(wanted_id)] if wanted_id else self.declared.values():
            first, end = 0, cells.size
            if wanted.HasField("index"):
                first = _checked(wanted.index.index, cells)
                end = first + 1
            found.append((cells.id, first, self.state[cells.name].values()[first:end]))
        encode = self.encode
        return (
            encode(cells_id, p4r.Index(index=index), value)
            for cells_id, first, values in found
            for index, value in enumerate(values.tolist(), first)
        )

    def _find(self, cells_id: int) -> CellsInfo:
        found = self.declared.get(cells_id)
        if found is None:
            raise invalid(f"{self.kind}_id: no {self.kind} {cells_id:#x} in the P4Info; use one of its ids")
        return found


def counters(info: PipelineInfo, switch: Switch) -> Cells:
    """Return a pipeline's indirect counters."""

    def decode(entry: p4r.CounterEntry, cells: CellsInfo) -> tuple[int, ...]:
        if not entry.HasField("data"):
            raise invalid(f"counter {cells.name}: data is missing; give packets and bytes")
        return counter_values(entry.data, cells.name)

    def encode(cells_id: int, index: p4r.Index, value: list[int]) -> p4r.CounterEntry:
        data = p4r.CounterData(packet_count=value[0], byte_count=value[1])
        return p4r.CounterEntry(counter_id=cells_id, index=index, data=data)

    return Cells("counter", info.counters, switch.counters, decode, encode)


def registers(info: PipelineInfo, switch: Switch) -> Cells:
    """Return a pipeline's registers."""

    def decode(entry: p4r.RegisterEntry, cells: CellsInfo) -> tuple[int, ...]:
        if entry.data.WhichOneof("data") != "bitstring":
            raise invalid(f"register {cells.name}: data must be a bitstring")
        return (to_int(entry.data.bitstring, cells.bits, f"register {cells.name}"),)

    def encode(cells_id: int, index: p4r.Index, value: int) -> p4r.RegisterEntry:
        data = p4d.P4Data(bitstring=to_bytes(value))
        return p4r.RegisterEntry(register_id=cells_id, index=index, data=data)

    return Cells("register", info.registers, switch.registers, decode, encode)


def counter_values(data: p4r.CounterData, name: str) -> tuple[int, int]:
    """Return packets and bytes of a counter's data. Raises RequestError if one is negative."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(
            f"counter of {name}: {min(data.packet_count, data.byte_count)} is negative; use 0 or more"
        )
    return data.packet_count, data.byte_count


def _checked(index: int, cells: CellsInfo) -> int:
    if not 0 <= index < cells.size:
        raise RequestError(
            Code.OUT_OF_RANGE, f"{cells.name}: index {index} is not below its size {cells.size}"
        )
    return index

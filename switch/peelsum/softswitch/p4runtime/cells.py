"""Indirect counters and registers: cells that are read one by one or all at once, and modified one by one."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4d, p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime.info import CellsInfo, PipelineInfo
from peelsum.softswitch.p4runtime.status import Code, RequestError, invalid
from peelsum.softswitch.p4runtime.values import to_bytes, to_int

_Cell = p4r.CounterEntry | p4r.RegisterEntry


class Counters:
    """The indirect counters of one pipeline."""

    def __init__(self, info: PipelineInfo, switch: Switch) -> None:
        self._info = info
        self._switch = switch

    def write(self, kind: p4r.Update.Type.ValueType, entry: p4r.CounterEntry) -> None:
        """Set one cell. Raises RequestError."""
        counter = _find(self._info.counters, entry.counter_id, "counter")
        index = _index_to_modify(kind, entry, counter)
        if not entry.HasField("data"):
            raise invalid(f"counter {counter.name}: data is missing; give packets and bytes")
        self._switch.counters[counter.name].write(index, *counter_values(entry.data, counter.name))

    def read(self, wanted: p4r.CounterEntry) -> Iterator[p4r.CounterEntry]:
        """Return the cells that `wanted` selects now: one, a counter's, or all for counter_id 0."""
        found = []
        for counter in _select(self._info.counters, wanted.counter_id, "counter"):
            chosen, state = _indices(wanted, counter), self._switch.counters[counter.name]
            found.append((counter.id, chosen, state.values()[chosen.start : chosen.stop]))
        return (
            _counter_entry(counter_id, index, *cell)
            for counter_id, chosen, values in found
            for index, cell in zip(chosen, values.tolist(), strict=True)
        )


class Registers:
    """The registers of one pipeline."""

    def __init__(self, info: PipelineInfo, switch: Switch) -> None:
        self._info = info
        self._switch = switch

    def write(self, kind: p4r.Update.Type.ValueType, entry: p4r.RegisterEntry) -> None:
        """Set one cell. Raises RequestError."""
        register = _find(self._info.registers, entry.register_id, "register")
        index = _index_to_modify(kind, entry, register)
        if entry.data.WhichOneof("data") != "bitstring":
            raise invalid(f"register {register.name}: data must be a bitstring")
        value = to_int(entry.data.bitstring, register.bits, f"register {register.name}")
        self._switch.registers[register.name].write(index, value)

    def read(self, wanted: p4r.RegisterEntry) -> Iterator[p4r.RegisterEntry]:
        """Return the cells that `wanted` selects now: one, a register's, or all for register_id 0."""
        found = []
        for register in _select(self._info.registers, wanted.register_id, "register"):
            chosen, state = _indices(wanted, register), self._switch.registers[register.name]
            found.append((register.id, chosen, state.values()[chosen.start : chosen.stop]))
        return (
            _register_entry(register_id, index, value)
            for register_id, chosen, values in found
            for index, value in zip(chosen, values.tolist(), strict=True)
        )


def _counter_entry(counter_id: int, index: int, packets: int, octets: int) -> p4r.CounterEntry:
    data = p4r.CounterData(packet_count=packets, byte_count=octets)
    return p4r.CounterEntry(counter_id=counter_id, index=p4r.Index(index=index), data=data)


def _register_entry(register_id: int, index: int, value: int) -> p4r.RegisterEntry:
    data = p4d.P4Data(bitstring=to_bytes(value))
    return p4r.RegisterEntry(register_id=register_id, index=p4r.Index(index=index), data=data)


def counter_values(data: p4r.CounterData, name: str) -> tuple[int, int]:
    """Return packets and bytes of a counter's data. Raises RequestError if one is negative."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(
            f"counter of {name}: {min(data.packet_count, data.byte_count)} is negative; use 0 or more"
        )
    return data.packet_count, data.byte_count


def _find(cells: dict[int, CellsInfo], cells_id: int, kind: str) -> CellsInfo:
    found = cells.get(cells_id)
    if found is None:
        raise invalid(f"{kind}_id: no {kind} {cells_id:#x} in the P4Info; use one of its ids")
    return found


def _select(cells: dict[int, CellsInfo], cells_id: int, kind: str) -> list[CellsInfo]:
    return [_find(cells, cells_id, kind)] if cells_id else list(cells.values())


def _index_to_modify(kind: p4r.Update.Type.ValueType, entry: _Cell, cells: CellsInfo) -> int:
    if kind != p4r.Update.MODIFY:
        raise invalid(f"{cells.name}: cells cannot be inserted or deleted; modify them")
    if not entry.HasField("index"):
        raise invalid(f"{cells.name}: index is missing; give the cell's index")
    return _checked(entry.index.index, cells)


def _indices(wanted: _Cell, cells: CellsInfo) -> range:
    if not wanted.HasField("index"):
        return range(cells.size)
    index = _checked(wanted.index.index, cells)
    return range(index, index + 1)


def _checked(index: int, cells: CellsInfo) -> int:
    if not 0 <= index < cells.size:
        raise RequestError(
            Code.OUT_OF_RANGE, f"{cells.name}: index {index} is not below its size {cells.size}"
        )
    return index

"""The layout of tables, registers and counters in the flat arrays that generated code and control share.

Generated code contains the offsets as constants, so they are fixed once the program is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from peelsum.softswitch.compiler.reroll import Spans
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.model import Header, Program, TableDeclaration, TableKey
from peelsum.softswitch.program.operations import FieldElement, FieldRef, Target, walk

#: Returned by a port's queue for a packet that finds it full.
FULL = (1 << 64) - 1
#: Words of a row before its parameters: action + 1 (0: empty row), and the entry's number.
ROW_ACTION, ROW_ENTRY, ROW_PARAMS = 0, 1, 2
#: Most words of table memory: 2 GiB.
WORDS_LIMIT = 1 << 28


def words_of(bits: int) -> int:
    """Return how many 64-bit words hold `bits` bits."""
    return max(1, -(-bits // 64))


def limbs(value: int, bits: int) -> list[int]:
    """Split `value` into 64-bit words, most significant first."""
    count = words_of(bits)
    return [value >> 64 * (count - 1 - i) & (1 << 64) - 1 for i in range(count)]


@dataclass(frozen=True, slots=True)
class KeyPart:
    """A part of a key word: limb number `limb`, from the top, of key field `key`, shifted left by `shift`.

    The field has `bits_below` bits below the limb.
    """

    key: int
    limb: int
    bits_below: int
    shift: int


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The layout of a table in the table memory.

    `default_row` is the index of the default action's row, which has no key. The entries start at `region`.
    An exact table is a hash table of `capacity` rows with open addressing. Any other table has the number of
    rows and then the rows, in the order in which they are tried. A row has `row_words` words: action, entry
    number, parameters, and from word `key_offset` on the key. An exact key has one word per item of `words`.
    Any other key has value and mask per item of `words`, then low and high per limb of each item of `ranges`,
    the most significant first; all have `range_limbs` limbs.
    """

    table: TableDeclaration
    key_offset: int
    words: tuple[tuple[KeyPart, ...], ...]
    ranges: tuple[int, ...]
    range_limbs: int
    exact: bool
    row_words: int
    capacity: int
    default_row: int
    region: int
    end: int


@dataclass(frozen=True, slots=True)
class RegisterPlan:
    """Cell i is element `base + i * step` of the array of 32-bit registers, or of 64-bit ones if `wide`."""

    size: int
    bits: int
    wide: bool
    base: int
    step: int


@dataclass(frozen=True, slots=True)
class CounterPlan:
    """Cell i consists of elements `base + 2 i` (packets) and `base + 2 i + 1` (bytes)."""

    size: int
    base: int


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The layout of the program's registers and counters; `direct` has counters by table."""

    registers: dict[str, RegisterPlan]
    counters: dict[str, CounterPlan]
    direct: dict[str, CounterPlan]


def pack_keys(keys: Sequence[TableKey]) -> tuple[tuple[KeyPart, ...], ...]:
    """Return how key fields are packed side by side into 64-bit words; wider fields are split into limbs."""
    words: list[tuple[KeyPart, ...]] = []
    current: list[KeyPart] = []
    free_bits = 64
    for number, key in enumerate(keys):
        if key.kind == "range":
            continue
        if key.bits > 64:
            last = words_of(key.bits) - 1
            words += [(KeyPart(number, limb, 64 * (last - limb), 0),) for limb in range(last + 1)]
            continue
        if key.bits > free_bits:
            words.append(tuple(current))
            current, free_bits = [], 64
        free_bits -= key.bits
        current.append(KeyPart(number, 0, 0, free_bits))
    return (*words, tuple(current)) if current else tuple(words)


def plan_tables(program: Program) -> dict[str, TablePlan]:
    """Return the layout of every table. Raises UnsupportedConstruct if they need too much memory."""
    plans: dict[str, TablePlan] = {}
    end = 0
    for name, table in program.tables.items():
        actions = [program.actions[number] for number in {*table.actions, table.default_action}]
        param_words = max(sum(words_of(param.bits) for param in action.params) for action in actions)
        # A row of a table with an action profile has only the address of a member or group.
        plans[name] = plan_table(table, param_words if table.profile is None else 1, end)
        end = plans[name].end
    if end > WORDS_LIMIT:
        largest = max(plans.values(), key=lambda plan: plan.end - plan.default_row).table
        raise UnsupportedConstruct(
            f"table {largest.name}: size {largest.size} needs too much memory; declare less"
        )
    return plans


def plan_table(table: TableDeclaration, param_words: int, start: int) -> TablePlan:
    """Return the layout of one table from word `start` of the table memory on."""
    words = pack_keys(table.keys)
    ranges = tuple(number for number, key in enumerate(table.keys) if key.kind == "range")
    range_limbs = max((words_of(table.keys[number].bits) for number in ranges), default=1)
    exact = all(key.kind == "exact" for key in table.keys)
    key_offset = ROW_PARAMS + param_words
    row_words = key_offset + (1 if exact else 2) * (len(words) + len(ranges) * range_limbs)
    capacity = 1 << max(1, (2 * table.capacity - 1).bit_length()) if exact else table.capacity
    if not table.keys:
        capacity = 0
    region = start + key_offset
    # Before the rows of a table that is searched in order is their number.
    end = region + capacity * row_words + (0 if exact else 1)
    return TablePlan(
        table, key_offset, words, ranges, range_limbs, exact, row_words, capacity, start, region, end
    )


def plan_registers(program: Program, banks: Iterable[Sequence[str]]) -> dict[str, RegisterPlan]:
    """Return the layout of every register. A bank has cell 0 of all its registers, then cell 1, and so on."""
    plans: dict[str, RegisterPlan] = {}
    ends = {False: 0, True: 0}
    bank_list = [tuple(bank) for bank in banks]
    single_registers = [(name,) for name in program.registers if not any(name in bank for bank in bank_list)]
    for bank in [*bank_list, *single_registers]:
        first = program.registers[bank[0]]
        wide = first.bits > 32
        for column, name in enumerate(bank):
            plans[name] = RegisterPlan(first.size, first.bits, wide, ends[wide] + column, len(bank))
        ends[wide] += first.size * len(bank)
    return plans


def plan_counters(program: Program) -> dict[str, CounterPlan]:
    """Return the layout of every counter."""
    plans: dict[str, CounterPlan] = {}
    end = 0
    for name, counter in program.counters.items():
        plans[name] = CounterPlan(counter.size, end)
        end += 2 * counter.size
    return plans


@dataclass(frozen=True, slots=True)
class Variable:
    """The variable `name` for `bits` bits (at most 64), `offset` bits into the header."""

    name: str
    offset: int
    bits: int


@dataclass(frozen=True, slots=True)
class Array:
    """The array `name` for `count` fields of `bits` bits of a header, from field number `first` on."""

    name: str
    offset: int
    bits: int
    first: int
    count: int


Chunk: TypeAlias = Variable | Array


class Storage:
    """The variables and arrays of one program; `blocks` is all its code.

    exact: give each field one variable of any width, for interpreted code.
    """

    def __init__(
        self, program: Program, blocks: Iterable[Any], spans: Spans, roots: Iterable[FieldRef], exact: bool
    ) -> None:
        self._program, self._exact = program, exact
        self._names: set[str] = set()
        #: Of every packet field, and of metadata that the program uses: the variables that hold it, most
        #: significant first, or the array and the index in it.
        self.fields: dict[FieldRef, list[Variable] | tuple[Array, int]] = {}
        self.chunks: dict[str, list[Chunk]] = {}
        refs = set(roots).union(*program.field_lists.values())
        for block in blocks:
            refs.update(node for node in walk(block) if isinstance(node, FieldRef))
        for table in program.tables.values():
            refs.update(key.target for key in table.keys)
        others = (program.checksums, program.messages, *program.profiles.values(), *program.meters.values())
        refs.update(node for node in walk(others) if isinstance(node, FieldRef))
        # A header with a varbit is extracted field by field.
        headers = [header for header in program.headers.values() if header.varbit]
        refs.update(FieldRef(header.name, field.name) for header in headers for field in header.fields)
        #: (type, field) of all fields that the program names.
        used = {(program.headers[ref.header].type_name, ref.field) for ref in refs}
        by_type: dict[str, list[tuple[int, int]]] = {}
        for owner, ranges in spans.items():
            if owner:
                by_type.setdefault(program.headers[owner].type_name, []).extend(ranges)
        for header in program.headers.values():
            self._lay_out(header, used, sorted(set(by_type.get(header.type_name, ()))))

    def variables(self, ref: FieldRef) -> list[Variable]:
        """Return the variables of a field outside arrays; one for up to 64 bits."""
        variables = self.fields[ref]
        assert isinstance(variables, list)
        return variables

    def array(self, target: Target) -> tuple[Array, int] | None:
        """Return the array that holds a field, and its index there; of an element, the first index."""
        if isinstance(target, FieldElement):
            name = self._program.headers[target.header].fields[target.first].name
            target = FieldRef(target.header, name)
        stored = self.fields[target]
        return stored if isinstance(stored, tuple) else None

    def names(self, target: Target) -> list[str]:
        """Return the names of the variables, or of the array, that hold a field or element."""
        array = self.array(target)
        if array is not None:
            return [array[0].name]
        assert isinstance(target, FieldRef)
        return [variable.name for variable in self.variables(target)]

    def arrays(self) -> list[Array]:
        """Return all arrays."""
        return [chunk for chunks in self.chunks.values() for chunk in chunks if isinstance(chunk, Array)]

    def name(self, *parts: str) -> str:
        """Return a new variable name made from `parts`."""
        base = re.sub(r"\W+", "_", "_".join(parts), flags=re.ASCII).strip("_")
        name, number = base, 1
        while name in self._names:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name

    def _lay_out(self, header: Header, used: set[tuple[str, str]], spans: Sequence[tuple[int, int]]) -> None:
        """Assign a header's fields to arrays, where spans have them, and to variables."""
        chunks: list[Chunk] = []
        offset = number = 0
        while number < len(header.fields):
            span = next((part for part in spans if part[0] == number), None)
            if span is not None:
                fields = header.fields[number : span[1] + 1]
                name = self.name("a", header.name)
                array = Array(name, offset, fields[0].bits, number, len(fields))
                for index, field in enumerate(fields):
                    self.fields[FieldRef(header.name, field.name)] = array, index
                chunks.append(array)
                number, offset = span[1] + 1, offset + array.bits * array.count
                continue
            end = self._group_end(header, number, used, spans)
            bits = sum(part.bits for part in header.fields[number:end])
            name = header.fields[number].name
            if not header.metadata or (header.type_name, name) in used:
                # Variables of up to 64 bits each, most significant first.
                start, limb_count = offset, 1 if self._exact else words_of(bits)
                variables = []
                for limb in range(limb_count):
                    width = 64 if limb else bits - 64 * (limb_count - 1)
                    variables.append(Variable(self.name("f", header.name, name), start, width))
                    start += width
                chunks += variables
                self.fields[FieldRef(header.name, name)] = variables
            number, offset = end, offset + bits
        self.chunks[header.name] = chunks

    def _group_end(
        self, header: Header, number: int, used: set[tuple[str, str]], spans: Sequence[tuple[int, int]]
    ) -> int:
        """Return the end of the fields that share a variable with field `number`: unused packet fields do."""

        def is_separate(position: int) -> bool:
            starts = any(part[0] == position for part in spans)
            return starts or (header.type_name, header.fields[position].name) in used

        end = number + 1
        if header.metadata or is_separate(number):
            return end
        bits = header.fields[number].bits
        while end < len(header.fields) and not is_separate(end) and bits + header.fields[end].bits <= 64:
            bits += header.fields[end].bits
            end += 1
        return end

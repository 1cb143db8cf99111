"""The layout of tables, registers and counters in the flat arrays that generated code and control share.

Generated code contains the offsets as constants, so they are fixed once the program is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.model import Program, TableDeclaration, TableKey

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
    """A part of a key word: limb number `limb`, from the top, of key field `key`, shifted left by `shift`."""

    key: int
    limb: int
    shift: int


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The layout of a table in the table memory.

    `default_row` is the index of the default action's row, which has no key. The entries start at `region`.
    An exact table is a hash table of `capacity` rows with open addressing. Any other table has the number of
    rows and then the rows, in the order in which they are tried. A row has `row_words` words: action, entry
    number, parameters, key. An exact key has one word per item of `words`. Any other key has value and mask
    per item of `words`, then low and high per item of `ranges`.
    """

    table: TableDeclaration
    param_words: int
    words: tuple[tuple[KeyPart, ...], ...]
    ranges: tuple[int, ...]
    exact: bool
    row_words: int
    capacity: int
    default_row: int
    region: int
    end: int

    @property
    def key_offset(self) -> int:
        """The number of words before a row's key."""
        return ROW_PARAMS + self.param_words

    def key_words(self, values: Sequence[int]) -> list[int]:
        """Pack key values, one per table key, as generated code packs a packet's."""
        packed = []
        for parts in self.words:
            word = 0
            for part in parts:
                bits = self.table.keys[part.key].bits
                word |= limbs(values[part.key], bits)[part.limb] << part.shift
            packed.append(word)
        return packed


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


def pack_keys(keys: Sequence[TableKey]) -> tuple[tuple[KeyPart, ...], ...]:
    """Return how key fields are packed side by side into 64-bit words; wider fields are split into limbs."""
    words: list[tuple[KeyPart, ...]] = []
    current: list[KeyPart] = []
    free_bits = 64
    for number, key in enumerate(keys):
        if key.kind == "range":
            continue
        if key.bits > 64:
            words += [(KeyPart(number, limb, 0),) for limb in range(words_of(key.bits))]
            continue
        if key.bits > free_bits:
            words.append(tuple(current))
            current, free_bits = [], 64
        free_bits -= key.bits
        current.append(KeyPart(number, 0, free_bits))
    return (*words, tuple(current)) if current else tuple(words)


def plan_tables(program: Program) -> dict[str, TablePlan]:
    """Return the layout of every table. Raises UnsupportedConstruct if they need too much memory."""
    plans: dict[str, TablePlan] = {}
    end = 0
    for name, table in program.tables.items():
        plans[name] = plan = _plan_table(program, table, end)
        end = plan.end
    if end > WORDS_LIMIT:
        largest = max(plans.values(), key=lambda plan: plan.end - plan.default_row).table
        raise UnsupportedConstruct(
            f"table {largest.name}: size {largest.size} needs too much memory; declare less"
        )
    return plans


def _plan_table(program: Program, table: TableDeclaration, start: int) -> TablePlan:
    """Return the layout of a table that starts at this word of the table memory."""
    actions = [program.actions[number] for number in {*table.actions, table.default_action}]
    param_words = max(sum(words_of(param.bits) for param in action.params) for action in actions)
    words = pack_keys(table.keys)
    ranges = tuple(number for number, key in enumerate(table.keys) if key.kind == "range")
    exact = all(key.kind == "exact" for key in table.keys)
    key_words = len(words) if exact else 2 * len(words) + 2 * len(ranges)
    row_words = ROW_PARAMS + param_words + key_words
    size = len(table.const_entries) if table.const_entries is not None else table.size
    region = start + ROW_PARAMS + param_words
    if not table.keys:
        capacity, length = 0, 0
    elif exact:
        capacity = 1 << max(1, (2 * size - 1).bit_length())
        length = capacity * row_words
    else:
        capacity = size
        length = 1 + size * row_words
    return TablePlan(
        table, param_words, words, ranges, exact, row_words, capacity, start, region, region + length
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

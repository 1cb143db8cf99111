"""The layout of what externs keep in the table memory: meters, messages, action profiles, value sets.

These areas follow the tables, so that generated code and compiled loops need no further arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from peelsum.softswitch.compiler.layout import ROW_PARAMS, WORDS_LIMIT, TablePlan, plan_table, words_of
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.model import Message, Program, TableDeclaration, TableKey
from peelsum.softswitch.program.operations import FieldRef

#: Words of a meter's cell: whether it is configured, the time of its last packet, then committed and peak
#: rate in units per second, burst and tokens. Bursts and tokens are in millionths of a unit, because a
#: microsecond adds a rate's number of those.
METER_CONFIGURED, METER_TIME, METER_COMMITTED, METER_PEAK, METER_WORDS = 0, 1, 2, 5, 8
METER_RATE, METER_BURST, METER_TOKENS = 0, 1, 2
#: Most messages that wait until the control plane takes them; further ones are dropped and counted.
MOST_MESSAGES: Final = 1024
#: Words of the area of messages before the messages: how many wait, and how many were dropped.
MESSAGE_COUNT, MESSAGES_DROPPED, FIRST_MESSAGE = 0, 1, 2
#: Words of a group: the address of its list of members' rows, and the length of the list.
GROUP_LIST, GROUP_LENGTH, GROUP_WORDS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """The layout of an action profile: rows of members, groups, and the space for the groups' lists.

    A member's row is like a table's row without a key. A row of a table has only the address of a member's
    row or, with a selector, of a group.
    """

    rows: int
    row_words: int
    capacity: int
    groups: int
    lists: int
    end: int


@dataclass(frozen=True)
class ExternLayout:
    """The places of all areas; `end` is the size of the table memory."""

    meters: dict[str, int] = field(default_factory=dict)
    """Where the cells of each meter begin."""
    direct_meters: dict[str, str] = field(default_factory=dict)
    """By table, the name of its direct meter."""
    hits: dict[str, int] = field(default_factory=dict)
    """By table with idle time-outs, where the words begin that are set when an entry is hit."""
    profiles: dict[str, ProfilePlan] = field(default_factory=dict)
    value_sets: dict[str, TablePlan] = field(default_factory=dict)
    messages: int = 0
    message_words: int = 0
    random_state: int = 0
    counters: int = 0
    """Where the counters of hashes begin: that of all hashes in statements, then one of each selector."""
    end: int = 0


def plan_externs(program: Program, start: int) -> ExternLayout:
    """Return the layout of a program's areas from word `start` on. Raises UnsupportedConstruct."""
    meters, hits, profiles, value_sets = {}, {}, {}, {}
    random_state, counters, end = start, start + 1, start + 2 + len(program.profiles)
    for name, meter in program.meters.items():
        size = meter.size if meter.table is None else program.tables[meter.table].capacity
        meters[name], end = end, end + METER_WORDS * size
    for name, table in program.tables.items():
        if table.idle_timeout:
            hits[name], end = end, end + table.capacity
    for name, profile in program.profiles.items():
        capacity = max(1, profile.size)
        numbers = {n for table in program.tables.values() if table.profile == name for n in table.actions}
        actions = [program.actions[number] for number in numbers]
        param_words = max(
            (sum(words_of(part.bits) for part in action.params) for action in actions), default=0
        )
        row_words = ROW_PARAMS + param_words
        groups = end + capacity * row_words
        lists = groups + 3 * capacity * GROUP_WORDS
        profiles[name] = ProfilePlan(end, row_words, capacity, groups, lists, lists + 5 * capacity)
        end = profiles[name].end
    for name, value_set in program.value_sets.items():
        keys = (TableKey("value", FieldRef("", "value"), "ternary", value_set.bits),)
        table = TableDeclaration(name, keys, value_set.size, (), 0, (), True, None, {}, None)
        value_sets[name] = plan_table(table, 0, end)
        end = value_sets[name].end
    messages, message_words = end, 1 + max(map(_value_words, program.messages), default=0)
    if program.messages[1:]:
        end += FIRST_MESSAGE + MOST_MESSAGES * message_words
    if end > WORDS_LIMIT:
        raise UnsupportedConstruct(
            f"program: its tables, meters and action profiles need {end} words of memory, more than "
            f"{WORDS_LIMIT}; declare smaller ones"
        )
    direct = {meter.table: name for name, meter in program.meters.items() if meter.table is not None}
    return ExternLayout(
        meters, direct, hits, profiles, value_sets, messages, message_words, random_state, counters, end
    )


def member_codes(program: Program, profile: str) -> dict[str, int]:
    """Return the codes in the rows of an action profile's members, by action name.

    The tables that share a profile have actions of the same names, which p4c gives different numbers.
    """
    tables = [table for table in program.tables.values() if table.profile == profile]
    numbers = [number for table in reversed(tables) for number in table.actions]
    return {program.actions[number].name: number + 1 for number in numbers}


def _value_words(message: Message) -> int:
    return sum(words_of(bits) for _, bits, _ in message.values)

"""Writes code for the externs of v1model that keep state or send messages, and for action selectors.

Their state is in the table memory, as `extern_layout` lays it out.
"""

from __future__ import annotations

from contextlib import nullcontext

from peelsum.softswitch.compiler import emit_packets as packets
from peelsum.softswitch.compiler.emitter import Emitter
from peelsum.softswitch.compiler.extern_layout import (
    FIRST_MESSAGE,
    GROUP_LENGTH,
    GROUP_LIST,
    MESSAGE_COUNT,
    MESSAGES_DROPPED,
    METER_WORDS,
    MOST_MESSAGES,
)
from peelsum.softswitch.compiler.layout import ROW_ENTRY, ROW_PARAMS
from peelsum.softswitch.program import operations as ops


def statement(emit: Emitter, node: ops.Primitive) -> None:
    """Write the statement of an extern."""
    expressions = emit.expressions
    match node:
        case ops.ExecuteMeter(target, meter, index):
            size = emit.program.meters[meter].size
            cell = expressions.exact(index, f"index of meter {meter}")
            with nullcontext() if cell.high < size else emit.block(f"if {cell.text} < {size}:"):
                execute_meter(emit, meter, cell.text, target)
        case ops.Random(target, low, high):
            emit.line(f"lowest = {expressions.exact(low, 'lower end of random').text}")
            emit.line(f"highest = {expressions.exact(high, 'upper end of random').text}")
            text = f"random_number(memory, {emit.externs.random_state}, lowest, highest)"
            mask = (1 << emit.bits(target)) - 1
            emit.nested("if lowest <= highest:", f"{emit.place(target)} = {text} & {mask}")
        case ops.Truncate(length):
            emit.line(f"length_limit = {expressions.exact(length, 'length of truncate').text}")
            limit = emit.name("truncated_to")
            emit.nested(f"if length_limit < {limit}:", f"{limit} = length_limit")
        case ops.SendDigest(number):
            emit.line(f"digest = {number}")
        case ops.Log(number):
            send_message(emit, number)
        case ops.Assert(condition, number):
            with emit.block(f"if not {expressions.condition(condition)}:"):
                emit.line(f"{emit.name('failed')} = True")
                send_message(emit, number)


def execute_meter(emit: Emitter, meter: str, index: str, target: ops.Target) -> None:
    """Store the colour that cell `index`, which is in range, gives to the packet."""
    amount = "size" if emit.program.meters[meter].in_bytes else "1"
    cell = f"{emit.externs.meters[meter]} + {METER_WORDS} * {index}"
    mask = (1 << emit.bits(target)) - 1
    emit.line(f"{emit.place(target)} = meter_colour(memory, {cell}, now, {amount}) & {mask}")


def send_digest(emit: Emitter) -> None:
    """Send the digest that ingress asked for, with the values at the end of ingress."""
    for number, message in enumerate(emit.program.messages):
        if number and message.kind == "digest":
            with emit.block(f"if digest == {number}:"):
                send_message(emit, number)


def send_message(emit: Emitter, number: int) -> None:
    """Append a message for the control plane, or count it as dropped if too many wait."""
    base, words = emit.externs.messages, emit.externs.message_words
    count, dropped = f"memory[{base + MESSAGE_COUNT}]", f"memory[{base + MESSAGES_DROPPED}]"
    with emit.block(f"if {count} < {MOST_MESSAGES}:"):
        emit.line(f"message = {base + FIRST_MESSAGE} + {count} * {words}", f"memory[message] = {number}")
        values = emit.program.messages[number].values
        texts = [text for value, bits, _ in values for text in emit.expressions.limbs(value, bits)]
        emit.line(*(f"memory[message + {word}] = {text}" for word, text in enumerate(texts, 1)))
        emit.line(f"{count} = {count} + 1")
    emit.nested("else:", f"{dropped} = {dropped} + 1")


def record_hit(emit: Emitter, table: str, row: str) -> None:
    """Record the hit of an entry's row, for its idle time-out, and execute its direct meter."""
    entry = f"memory[{row} + {ROW_ENTRY}]"
    if table in emit.externs.hits:
        emit.line(f"memory[{emit.externs.hits[table]} + {entry}] = 1")
    meter = emit.externs.direct_meters.get(table)
    if meter is not None:
        target = emit.program.meters[meter].target
        assert target is not None  # a direct meter has one
        execute_meter(emit, meter, entry, target)


def choose_member(emit: Emitter, profile: str, row: str, default: int) -> None:
    """Replace an entry's row by that of its member; of an empty group, by the default action's row."""
    address, selector = f"memory[{row} + {ROW_PARAMS}]", emit.program.profiles[profile].selector
    if selector is None:
        emit.line(f"{row} = {address}")
        return
    emit.line(f"group_of = {address}", f"{row} = {default}")
    with emit.block(f"if memory[group_of + {GROUP_LENGTH}] != 0:"):
        what, counter = f"selector of action profile {profile}", list(emit.program.profiles).index(profile)
        chosen = packets.hash_of(emit, selector.algorithm, selector.inputs, what, counter=1 + counter)
        emit.line(f"chosen = ({chosen} & 0xFFFFFFFF) % memory[group_of + {GROUP_LENGTH}]")
        emit.line(f"{row} = memory[memory[group_of + {GROUP_LIST}] + chosen]")

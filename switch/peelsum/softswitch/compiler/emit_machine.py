"""Parsers that loop, and what a program asks to be done with a packet again, in source text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from peelsum.softswitch.compiler.emit_packets import stop_parser
from peelsum.softswitch.program.operations import Clone, Recirculate, Resubmit

if TYPE_CHECKING:
    from peelsum.softswitch.compiler.emitter import Emitter
    from peelsum.softswitch.compiler.flow import Block, Machine

#: Set in `cloning` beside the session's number, which may be 0.
CLONING = 1 << 15
#: Parser states that one packet may go through.
MOST_VISITS = 4096


def machine(emit: Emitter, part: Machine, write: Callable[[Block], None]) -> None:
    """Write a parser's states as a loop. It counts visits: a state that reads nothing could run forever."""
    emit.line(f"state = {emit.constant(0)}")
    emit.line(f"visits = {emit.constant(0)}")
    with emit.block("while True:"):
        stop_parser(emit, f"visits == {emit.constant(MOST_VISITS)}", "ParserTimeout")
        emit.line(f"visits = visits + {emit.constant(1)}")
        for number, block in enumerate(part.states):
            with emit.block(f"{'elif' if number else 'if'} state == {emit.constant(number)}:"):
                emit.filled.clear()  # a loop comes back with other counts
                write(block)


def note_again(emit: Emitter, part: Clone | Resubmit | Recirculate) -> None:
    """Write code that requests another pass for the pipeline's end; of each kind, the last request counts."""
    match part:
        case Clone(session, fields):
            text = emit.expressions.stored(session, 15)
            emit.line(f"cloning = {text} | {emit.constant(CLONING)}")
            emit.line(f"clone_fields = {emit.constant(fields)}")
        case Resubmit(fields):
            emit.line(f"resubmit_fields = {emit.constant(fields)}")
        case Recirculate(fields):
            emit.line(f"recirculate_fields = {emit.constant(fields)}")

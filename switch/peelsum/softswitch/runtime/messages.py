"""What a running program sends to the control plane: digests, lines of the log, failed assertions.

Generated code appends messages to an area of the table memory, from which `Messages.take` reads them.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peelsum.logs import RateLimit
from peelsum.softswitch.compiler.extern_layout import (
    FIRST_MESSAGE,
    MESSAGE_COUNT,
    MESSAGES_DROPPED,
    MOST_MESSAGES,
    ExternLayout,
)
from peelsum.softswitch.compiler.layout import words_of
from peelsum.softswitch.program.model import Message, Program

_logger = logging.getLogger("peelsum.switch")
#: Placeholders of values in a line of the log: the n-th brace pair stands for the n-th value.
_PLACEHOLDER = re.compile(r"(?<!\\)\{[^}]*\}")
#: Most digests that wait until `Messages.digests` is emptied; the oldest are dropped.
_MOST_DIGESTS = 16 * MOST_MESSAGES

#: A digest's name, and the values that a program sent with it.
Digest: TypeAlias = tuple[str, tuple[int, ...]]


class Messages:
    """The messages of one running switch. The caller holds the switch's lock."""

    def __init__(self, program: Program, layout: ExternLayout, memory: NDArray[np.uint64]) -> None:
        self._declared, self._words = program.messages, layout.message_words
        end = FIRST_MESSAGE + MOST_MESSAGES * layout.message_words if program.messages[1:] else 0
        self._area = memory[layout.messages : layout.messages + end]
        #: By number of a statement, so that one that logs often does not hide another.
        self._rate_limits = [RateLimit() for _ in self._declared]
        #: The digests taken so far; the reader empties it.
        self.digests: deque[Digest] = deque(maxlen=_MOST_DIGESTS)

    @property
    def waiting(self) -> bool:
        """Whether the program has sent messages that `take` has not read; needs no lock."""
        return bool(len(self._area) and self._area[MESSAGE_COUNT])

    @property
    def dropped(self) -> int:
        """The number of messages that the program could not send, because too many waited."""
        return int(self._area[MESSAGES_DROPPED]) if len(self._area) else 0

    def take(self) -> None:
        """Append waiting digests to `digests`, and write other messages to the log."""
        count = int(self._area[MESSAGE_COUNT])
        end = FIRST_MESSAGE + count * self._words
        rows = self._area[FIRST_MESSAGE:end].reshape(count, self._words).tolist()
        self._area[MESSAGE_COUNT] = 0
        for number, *words in rows:
            message = self._declared[number]
            values = _values(message, words)
            if message.kind == "digest":
                self.digests.append((message.text, values))
            elif message.kind == "log":
                self._log(number, logging.INFO, "program: %s", _line(message.text, values))
            else:
                text = "program: %s does not hold: the packet is dropped"
                self._log(number, logging.ERROR, text, message.text)

    def _log(self, number: int, level: int, text: str, *arguments: str) -> None:
        """Log a line of statement `number`, unless that has logged too many."""
        if _logger.isEnabledFor(level):
            record = _logger.makeRecord(_logger.name, level, __file__, 0, text, arguments, None)
            if self._rate_limits[number].filter(record):
                _logger.handle(record)


def _values(message: Message, words: list[int]) -> tuple[int, ...]:
    """Return a message's values, which are in 64-bit words, most significant first."""
    values, position = [], 0
    for _, bits, signed in message.values:
        value = 0
        for word in words[position : position + words_of(bits)]:
            value = value << 64 | word
        values.append(value - (1 << bits) if signed and value >> bits - 1 else value)
        position += words_of(bits)
    return tuple(values)


def _line(text: str, values: tuple[int, ...]) -> str:
    """Return a line of the log with its values; escaped braces lose their backslash."""
    remaining = list(map(str, values))
    line = _PLACEHOLDER.sub(lambda match: remaining.pop(0) if remaining else match[0], text)
    return line.replace("\\{", "{").replace("\\}", "}")

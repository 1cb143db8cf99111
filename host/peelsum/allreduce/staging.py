"""Rounds of an exchange, and their staging: copies between an exchange on a device and the host's words."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple

import numpy as np

from peelsum.codec import Memory
from peelsum.summation import Words


class Round(NamedTuple):
    """A request for sums."""

    or_words: int
    """Number of words to be OR-ed."""
    add_words: int
    """Number of words to be added."""
    write: Callable[[Words, Words], None]
    """Writes all of this worker's words, into uint32[or_words] and uint32[add_words]."""


class Sums(NamedTuple):
    """The result of a round over all workers."""

    ored: Words
    """uint32[or_words]."""
    added: Words
    """uint32[add_words]."""
    near_ored: Words | None = None
    """The words on the host of which `ored` is a copy on a device; None without a copy."""
    near_added: Words | None = None
    """Likewise for `added`."""
    near_sent: Words | None = None
    """What this worker contributed to `added`, on the host."""

    @property
    def near(self) -> Sums:
        """The sums on the host, where reading them does not wait; without a copy there, these sums."""
        if self.near_ored is None or self.near_added is None:
            return self
        return Sums(self.near_ored, self.near_added)


Rounds = Generator[Round, Sums, None]


def _write_nothing(ored: Words, added: Words) -> None:
    """Write no words."""


#: Yielded in place of a round before an exchange reads what it copies from a device. All other exchanges
#: begin their copies before it goes on, so that the host waits once for all of them. It gets no sums.
PAUSE = Round(0, 0, _write_nothing)


def staged(rounds: Rounds, memory: Memory) -> Rounds:
    """Yield the same rounds with words on the host, while `rounds` writes words and gets sums in `memory`."""
    if memory.direct:
        yield from rounds
        return
    asked = next(rounds)
    while True:
        sent: list[Words] = []
        sums = yield asked._replace(write=partial(_write, asked, memory, sent))
        there = memory.receive(sums.ored), memory.receive(sums.added)
        try:
            asked = rounds.send(Sums(*there, sums.ored, sums.added, *sent))
            while asked is PAUSE:
                yield PAUSE
                asked = next(rounds)
        except StopIteration:
            return


def _write(asked: Round, memory: Memory, sent: list[Words], ored: Words, added: Words) -> None:
    or_words, add_words = memory.words(asked.or_words), memory.words(asked.add_words)
    asked.write(or_words, add_words)
    memory.send(or_words, ored)
    memory.send(add_words, added)
    sent.append(added)


def by_host(rounds: Rounds, memory: Memory) -> Rounds:
    """Yield the same rounds with words in `memory`, while `rounds` writes words and gets sums on the host."""
    asked = next(rounds)
    while True:
        sums = yield asked._replace(write=partial(_carry, asked, memory))
        copies = [memory.later(words) for words in (sums.ored, sums.added)]
        yield PAUSE
        try:
            asked = rounds.send(Sums(*(copied().view(np.uint32) for copied in copies)))
        except StopIteration:
            return


def _carry(asked: Round, memory: Memory, ored: Words, added: Words) -> None:
    words = np.empty(asked.or_words, np.uint32), np.empty(asked.add_words, np.uint32)
    asked.write(*words)
    for own, into in zip(words, (ored, added), strict=True):
        memory.send(memory.receive(own), into)

"""Rounds of an exchange whose words lie on a device, as rounds of words on the host.

It knows of memory only; what the words mean is the exchange's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple

from peelsum.allreduce.summation import Words
from peelsum.codec import Memory


class Round(NamedTuple):
    """A request for sums: `write` puts a worker's words into or_words and add_words words, all of them."""

    or_words: int
    add_words: int
    write: Callable[[Words, Words], None]


class Sums(NamedTuple):
    """What a round came to over all workers."""

    ored: Words
    added: Words


Rounds = Generator[Round, Sums, None]


def staged(rounds: Rounds, memory: Memory) -> Rounds:
    """The same rounds; words are written in `memory`, and sums are there, when `rounds` gets to see them."""
    if memory.direct:
        yield from rounds
        return
    asked = next(rounds)
    while True:
        sums = yield asked._replace(write=partial(_write, asked, memory))
        try:
            asked = rounds.send(Sums(memory.receive(sums.ored), memory.receive(sums.added)))
        except StopIteration:
            return


def _write(asked: Round, memory: Memory, ored: Words, added: Words) -> None:
    or_words, add_words = memory.words(asked.or_words), memory.words(asked.add_words)
    asked.write(or_words, add_words)
    memory.send(or_words, ored)
    memory.send(add_words, added)

"""Run the exchanges of a step's tensors on a device as one, so that tensors share launches and copies.

The words are those of single exchanges, in the same order: a round's are laid out end to end on the device,
and copied together. All tensors' launches between two exchanges are made at once
(`peelsum.codec.gpu_together`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, cast

from peelsum.allreduce.plan import labeled
from peelsum.allreduce.staging import PAUSE, Round, Rounds, Sums, staged
from peelsum.summation import Words

if TYPE_CHECKING:
    from peelsum.allreduce.exchange import TensorExchange
    from peelsum.codec.gpu_memory import DeviceMemory


class Together:
    """The exchanges of tensors on one device, in the order of their words, by name."""

    def __init__(self, exchanges: Mapping[str, TensorExchange], memory: DeviceMemory) -> None:
        self._exchanges, self._memory = exchanges, memory
        self.words_sent, self.label = 0, labeled(list(exchanges))

    def rounds(self) -> Rounds:
        """Yield every round of the exchanges; send each round's sums back into the generator."""
        return staged(self._rounds(), cast(Any, self._memory))

    def members(self) -> Mapping[str, TensorExchange]:
        """Return the tensors' exchanges, after the last round."""
        return self._exchanges

    def decode(self, divisor: int) -> None:
        """Write the sums of all tensors, divided by `divisor`: each exchange then has its `floats`."""
        with self._memory.together() as together:
            for exchange in self._exchanges.values():
                with together.lane():
                    exchange.decode(divisor)

    def _rounds(self) -> Rounds:
        exchanges = list(self._exchanges.values())
        rounds = [exchange.lone_rounds() for exchange in exchanges]
        asked = self._resumed(rounds, [None] * len(rounds))
        while True:
            while any(one is PAUSE for one in asked):
                yield PAUSE
                paused = [one for one, ask in zip(rounds, asked, strict=True) if ask is PAUSE]
                resumed = iter(self._resumed(paused, [None] * len(paused)))
                asked = [next(resumed) if ask is PAUSE else ask for ask in asked]
            left = [m for m, ask in enumerate(asked) if ask is not None]
            exchanges, rounds = [exchanges[m] for m in left], [rounds[m] for m in left]
            begun = [ask for ask in asked if ask is not None]
            if not begun:
                return
            ored = _spans([one.or_words for one in begun])
            added = _spans([one.add_words for one in begun])
            for exchange, one in zip(exchanges, begun, strict=True):
                exchange.words_sent += one.or_words + one.add_words
            write = partial(self._write, begun, ored, added)
            sums = yield Round(ored[-1].stop, added[-1].stop, write)
            asked = self._resumed(rounds, [_part(sums, *one) for one in zip(ored, added, strict=True)])

    def _resumed(self, rounds: Sequence[Rounds], sums: Sequence[Sums | None]) -> list[Round | None]:
        """Go on with exchanges, with sums or after a pause; return what each asks for, None at its end."""
        asked: list[Round | None] = []
        with self._memory.together() as together:
            for one, part in zip(rounds, sums, strict=True):
                with together.lane():
                    try:
                        asked.append(next(one) if part is None else one.send(part))
                    except StopIteration:
                        asked.append(None)
        return asked

    def _write(
        self,
        asked: Sequence[Round],
        or_spans: Sequence[slice],
        add_spans: Sequence[slice],
        ored: Words,
        added: Words,
    ) -> None:
        with self._memory.together() as together:
            for one, a, b in zip(asked, or_spans, add_spans, strict=True):
                with together.lane():
                    one.write(ored[a], added[b])


def _spans(lengths: Sequence[int]) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(accumulate(lengths, initial=0))]


def _part(sums: Sums, ored: slice, added: slice) -> Sums:
    """Return the sums of one exchange."""
    spans = ored, added, ored, added, added
    parts: list[Any] = [words if words is None else words[at] for words, at in zip(sums, spans, strict=True)]
    return Sums(*parts)

"""Random frames for any program: its parser's way through them is chosen, and fields often have its constants."""

from __future__ import annotations

import random
from collections.abc import Iterator

from peelsum.softswitch.program.model import Advance, Extract, ExtractNext, Program
from peelsum.softswitch.program.operations import Const, FieldRef, Lookahead, walk

#: Most states of a parser that a frame is made for.
MOST_STATES = 20


class Generator:
    """Makes frames for one program."""

    def __init__(self, program: Program, rng: random.Random) -> None:
        self._program, self._rng = program, rng
        nodes = (*program.actions.values(), *program.ingress.nodes.values(), *program.egress.nodes.values())
        self._constants = sorted({node.value for node in walk(nodes) if isinstance(node, Const)} | {0, 1, -1})
        self._keys: dict[FieldRef, list[int]] = {}
        for table in program.tables.values():
            for entry in table.const_entries or ():
                for key, value in zip(table.keys, entry.keys, strict=True):
                    number = value if isinstance(value, int) else value[0]
                    self._keys.setdefault(key.target, []).append(number)

    def frames(self, count: int) -> Iterator[bytes]:
        """Yield `count` frames; some are too short for the parser, or only noise."""
        for _ in range(count):
            kind = self._rng.random()
            frame = self._rng.randbytes(self._rng.randrange(1, 100)) if kind < 0.05 else self._parsed()
            yield (
                frame[: self._rng.randrange(1, len(frame))]
                if 0.05 < kind < 0.15 and len(frame) > 1
                else frame
            )

    def _parsed(self) -> bytes:
        program, rng = self._program, self._rng
        self._bits: list[int] = []
        self._position = 0
        self._places: dict[FieldRef, tuple[int, int]] = {}
        filled = dict.fromkeys(program.stacks, 0)
        state = program.parser.states.get(program.parser.start)
        for _ in range(MOST_STATES):
            if state is None:
                break
            for step in state.ops:
                if isinstance(step, Extract):
                    self._extract(step.header)
                elif isinstance(step, ExtractNext):
                    elements = program.stacks[step.stack]
                    self._extract(elements[min(filled[step.stack], len(elements) - 1)])
                    filled[step.stack] += 1
                elif isinstance(step, Advance):
                    self._extend(8 * step.count)
                    self._position += 8 * step.count
            if not state.transitions:
                break
            way = rng.choice(state.transitions)
            for number, part in enumerate(state.key if way.values is not None else ()):
                mask = -1 if way.masks is None else way.masks[number]
                self._select(part, way.values[number], mask)
            state = program.parser.states.get(way.next_state)
        bits = "".join(map(str, self._bits))
        head = int(bits or "0", 2).to_bytes(len(bits) // 8 + 1, "big")[1:] if len(bits) % 8 == 0 else b""
        return (head + rng.randbytes(rng.choice([0, 1, 20, 60]))) or b"\0"

    def _extract(self, header: str) -> None:
        for field in self._program.headers[header].fields:
            ref = FieldRef(header, field.name)
            self._places[ref] = self._position, field.bits
            self._extend(field.bits, self._value(ref, field.bits))
            self._position += field.bits

    def _value(self, ref: FieldRef, bits: int) -> int:
        rng, top = self._rng, (1 << bits) - 1
        choices = [
            rng.getrandbits(bits),
            rng.choice([0, 1, top, 1 << bits - 1, top >> 1]),
            rng.choice(self._constants),
        ]
        return rng.choice(
            [*choices, *rng.sample(self._keys.get(ref, ()), min(3, len(self._keys.get(ref, ()))))]
        )

    def _extend(self, bits: int, value: int | None = None) -> None:
        """Append what `bits` bits from the parser's place on lack, the low ones of `value`."""
        missing = self._position + bits - len(self._bits)
        value = self._rng.getrandbits(bits) if value is None else value
        self._bits += [value >> number & 1 for number in reversed(range(max(0, missing)))]

    def _select(self, part: object, value: int, mask: int) -> None:
        if isinstance(part, Lookahead):
            self._extend(part.offset + part.bits)
            place, bits = self._position + part.offset, part.bits
        else:
            known = [node for node in walk(part) if node in self._places]
            if not known:
                return
            place, bits = max(self._places[node] for node in known)
        for number in range(bits):
            shift = bits - 1 - number
            if mask >> shift & 1:
                self._bits[place + number] = value >> shift & 1

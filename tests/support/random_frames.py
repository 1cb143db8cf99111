"""Random frames for any program, with ways through its parser, and fields with its constants and entries."""

from peelsum.softswitch.program.model import Advance, Extract, ExtractNext
from peelsum.softswitch.program.operations import Const, FieldRef, Lookahead, walk

#: Most states of a parser that a frame is made for.
MOST_STATES = 20


class Generator:
    """Makes frames for a switch."""

    def __init__(self, switch, rng):
        program = switch.program
        self._program, self._rng = program, rng
        nodes = (*program.actions.values(), *program.ingress.nodes.values(), *program.egress.nodes.values())
        self._constants = sorted({node.value for node in walk(nodes) if isinstance(node, Const)} | {0, 1, -1})
        self._keys = {}
        for name, table in switch.tables.items():
            for entry in table.entries():
                for key, value in zip(program.tables[name].keys, entry.keys, strict=True):
                    number = value if isinstance(value, int) else value[0]
                    self._keys.setdefault(key.target, []).append(number)

    def frames(self, count, broken=0.15):
        """Yield `count` frames, of which a part is too short for the parser, or only noise."""
        for _ in range(count):
            frame, kind = self._parsed(), self._rng.random()
            if kind < broken / 3:
                yield self._rng.randbytes(self._rng.randrange(1, 100))
            else:
                yield frame[: self._rng.randrange(1, len(frame) + 1)] if kind < broken else frame

    def _parsed(self):
        states, rng = self._program.parser.states, self._rng
        self._bits = []
        self._position = 0
        self._places = {}
        self._filled = dict.fromkeys(self._program.stacks, 0)
        name = self._program.parser.start
        for _ in range(MOST_STATES):
            if name is None:
                break
            for step in states[name].ops:
                self._parse(step)
            if not states[name].transitions:
                break
            edge = rng.choice(states[name].transitions)
            for number, part in enumerate(states[name].key if edge.values is not None else ()):
                self._select(part, edge.values[number], -1 if edge.masks is None else edge.masks[number])
            name = edge.next_state
        self._position = len(self._bits)
        self._extend(-len(self._bits) % 8)
        head = int("".join(map(str, self._bits)) or "0", 2).to_bytes(len(self._bits) // 8, "big")
        return head + rng.randbytes(rng.choice([1, 20, 60]))

    def _parse(self, step):
        match step:
            case Extract(header):
                self._extract(header)
            case ExtractNext(stack, member):
                elements = self._program.stacks[stack]
                self._extract(elements[min(self._filled[stack], len(elements) - 1)][member])
                self._filled[stack] += 1
            case Advance(Const(bits)):
                self._extend(bits)
                self._position += bits

    def _extract(self, header):
        for field in self._program.headers[header].fields:
            ref = FieldRef(header, field.name)
            self._places[ref] = self._position, field.bits
            self._extend(field.bits, self._value(ref, field.bits))
            self._position += field.bits

    def _value(self, ref, bits):
        rng, top = self._rng, (1 << bits) - 1
        edge = rng.choice([0, 1, top, top >> 1, 1 << bits - 1])
        known = rng.choice(self._keys.get(ref, self._constants))
        return rng.choice([rng.getrandbits(bits), edge, rng.choice(self._constants), known])

    def _extend(self, bits, value=None):
        """Append what `bits` bits from the parser's place on lack, the low ones of `value`."""
        missing = self._position + bits - len(self._bits)
        value = self._rng.getrandbits(bits) if value is None else value
        self._bits += [value >> number & 1 for number in reversed(range(max(0, missing)))]

    def _select(self, part, value, mask):
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

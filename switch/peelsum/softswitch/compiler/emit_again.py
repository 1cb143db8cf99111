"""Writes code for packets that go through the switch again: cloned, resubmitted, recirculated.

Only programs with such packets are written this way. Pending work waits in `again`, a first-in first-out
list. An item has the packet's kind, the place of its bytes and the variables that it keeps. All items of a
frame are processed before the next frame; simple_switch, too, prefers them to new frames.

A clone goes before the packet that it was made from, as in simple_switch; that packet then waits as an item.
A frame makes at most `MOST_ITEMS` items, so no program can keep the switch in an endless loop. simple_switch
has no such limit: a program that recirculates every packet keeps it busy until it is killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from peelsum.softswitch.compiler.emit_packets import clear_chunks
from peelsum.softswitch.compiler.emit_registers import Places
from peelsum.softswitch.compiler.emit_statements import Statements
from peelsum.softswitch.compiler.emit_switch import Blocks, SwitchWriter
from peelsum.softswitch.compiler.emitter import CURRENT_SIZE, Emitter
from peelsum.softswitch.compiler.flow import Statement
from peelsum.softswitch.compiler.storage import Variable
from peelsum.softswitch.program.operations import Clone, FieldRef, Recirculate, Resubmit, walk

#: Most items that one frame may make; further ones are refused and counted.
MOST_ITEMS = 256
#: Words of `again`: the index of the next item, the number of items, the number refused; then the items.
NEXT, COUNT, REFUSED, ITEMS = range(4)
# The kinds of items: simple_switch's instance types, and one of our own for a packet that left ingress and
# waits for its clones.
_FRESH, _INGRESS_CLONE, _EGRESS_CLONE, _RECIRCULATED, _RESUBMITTED, _DEFERRED = 0, 1, 2, 4, 6, 8
# Those that hold all variables, and are not parsed.
_WHOLE = (_EGRESS_CLONE, _DEFERRED)
# An item's first words: its kind, its field list, its bytes, and its destination. The fields of all field
# lists follow, and then, in some items, the packet's variables.
_HEAD_WORDS = (
    *("kind", "fields", "source", "base", "size", "in_port"),
    *("replica", "replicas", "group", "unicast_port"),
)
#: Set in `cloning` beside the session's number, which may be 0.
_CLONING = 1 << 15


def goes_again(blocks: Blocks) -> bool:
    """Return whether a program can make packets go through the switch again."""
    return any(isinstance(node, (Clone, Resubmit, Recirculate)) for block in blocks for node in walk(block))


class _Requests(Statements):
    """Writes blocks that may request another pass; the last request of each kind counts."""

    def statement(self, part: Statement) -> None:
        """Write one statement."""
        emit = self._emit
        match part:
            case Clone(session, fields):
                emit.line(f"cloning = {emit.expressions.stored(session, 15)} | {emit.constant(_CLONING)}")
                emit.line(f"clone_fields = {emit.constant(fields)}")
            case Resubmit(fields):
                emit.line(f"resubmit_fields = {emit.constant(fields)}")
            case Recirculate(fields):
                emit.line(f"recirculate_fields = {emit.constant(fields)}")
            case _:
                super().statement(part)


class AgainWriter(SwitchWriter):
    """Writes the function of a program whose packets may go through it again."""

    arguments = f"{SwitchWriter.arguments}, sessions, again, scratch"

    def __init__(self, emit: Emitter, places: Places, blocks: Blocks, queued: bool) -> None:
        super().__init__(emit, places, blocks, queued)
        self._statements = _Requests(emit, places)
        self._ingress_requests = {type(node) for node in walk(blocks.ingress)}
        self._egress_requests = {type(node) for node in walk(blocks.egress)}
        self._flags = list(map(emit.validity_variable, self._packet_headers))

    def words(self) -> int:
        """Return how many words `again` needs."""
        return ITEMS + MOST_ITEMS * self._item_words()

    def _start(self) -> None:
        super()._start()
        emit = self._emit
        emit.line(f"head = again[{emit.constant(NEXT)}]")
        emit.line(f"tail = again[{emit.constant(COUNT)}]")
        emit.line("frames = data")

    # --- items ------------------------------------------------------------------------------------

    def _kept(self) -> Iterator[tuple[FieldRef, str, int]]:
        """Yield the variables of all fields in field lists, and their words in an item."""
        refs = dict.fromkeys(ref for refs in self._program.field_lists.values() for ref in refs)
        variables = [(ref, name) for ref in refs for name in self._emit.limb_places(ref)]
        for word, (ref, name) in enumerate(variables, len(_HEAD_WORDS)):
            yield ref, name, word

    def _variables(self) -> Iterator[tuple[str, int, int]]:
        """Yield a packet's variables, their words in an item, and the number of elements, 0 for a scalar."""
        emit = self._emit
        scalars = [CURRENT_SIZE, "off", "left", *map(emit.stack_variable, self._program.stacks), *self._flags]
        counts = dict.fromkeys(scalars, 0)
        for chunk in (chunk for chunks in self._storage.chunks.values() for chunk in chunks):
            counts[chunk.name] = 0 if isinstance(chunk, Variable) else chunk.count
        word = len(_HEAD_WORDS) + len(list(self._kept()))
        for name, count in counts.items():
            yield name, word, count
            word += max(count, 1)

    def _item_words(self) -> int:
        *_, (_, word, count) = self._variables()
        return word + max(count, 1)

    def _take(self) -> None:
        """Write code that takes the next item or, if none waits, the next frame."""
        emit = self._emit
        zero, one = emit.constant(0), emit.constant(1)
        emit.line(f"item = {emit.constant(ITEMS)} + head * {emit.constant(self._item_words())}")
        with emit.block("if head < tail:"):
            for word, name in enumerate(_HEAD_WORDS):
                emit.line(f"{name} = again[item + {emit.constant(word)}]")
            emit.line(f"head = head + {one}")
        with emit.block("else:"):
            emit.line(f"kind = {emit.constant(_FRESH)}")
            emit.line(f"fields = {zero}")
            emit.line(f"source = {zero}")
            emit.line("base = frame * stride")
            emit.line("size = number(length[frame])")
            emit.line("in_port = number(port[frame])")
        emit.line(f"data = frames if source == {zero} else scratch")
        for name in ("cloning", "clone_fields", "resubmit_fields", "recirculate_fields"):
            emit.line(f"{name} = {zero}")

    def _put(self, kind: int, fields: str, words: Mapping[str, str]) -> None:
        """Append an item; the head words that are not in `words` come from variables of the same names."""
        emit = self._emit
        refused = f"again[{emit.constant(REFUSED)}]"
        with emit.block(f"if tail == {emit.constant(MOST_ITEMS)}:"):
            emit.line(f"{refused} = {refused} + {emit.constant(1)}")
        with emit.block("else:"):
            emit.line(f"put = {emit.constant(ITEMS)} + tail * {emit.constant(self._item_words())}")
            head = {"kind": emit.constant(kind), "fields": fields, **words}
            for word, name in enumerate(_HEAD_WORDS):
                emit.line(f"again[put + {emit.constant(word)}] = {head.get(name, name)}")
            for _, name, word in self._kept():
                emit.line(f"again[put + {emit.constant(word)}] = {name}")
            for name, word, count in self._variables() if kind in _WHOLE else ():
                place, variable = f"again[put + {emit.constant(word)}", emit.name(name)
                if count:
                    with emit.block(f"for k in range({emit.constant(count)}):"):
                        emit.line(f"{place} + k] = {variable}[k]")
                else:
                    emit.line(f"{place}] = {variable}")
            if kind == _RECIRCULATED:
                emit.line(f"copy(scratch, {words['base']}, out, sent * out_stride, {words['size']})")
            emit.line(f"tail = tail + {emit.constant(1)}")

    def _restore(self) -> None:
        """Restore all variables from an item."""
        emit = self._emit
        for name, word, count in self._variables():
            place = f"again[item + {emit.constant(word)}"
            if count:
                with emit.block(f"for k in range({emit.constant(count)}):"):
                    emit.line(f"{name}[k] = {place} + k]")
            else:
                emit.line(f"{name} = {place}]" + (f" != {emit.constant(0)}" if name in self._flags else ""))

    def _restore_fields(self) -> None:
        """Restore the metadata of the item's field list."""
        emit = self._emit
        for number, refs in self._program.field_lists.items():
            with emit.block(f"if fields == {emit.constant(number)}:"):
                for ref, name, word in self._kept():
                    if ref in refs:
                        emit.line(f"{name} = again[item + {emit.constant(word)}]")

    # --- one pass ---------------------------------------------------------------------------------

    def _packet(self) -> None:
        """Process an item or a frame; the frame is done when no items wait."""
        emit = self._emit
        zero = emit.constant(0)
        self._take()
        with emit.block(f"if {self._is(*_WHOLE)}:"):
            self._restore()
        with emit.block("else:"):
            emit.line(f"{CURRENT_SIZE} = size")
            self._parse()
        with emit.block(f"if {self._is(_FRESH, _RECIRCULATED, _RESUBMITTED)}:"):
            self._ingress()
            self._choose()
            self._after_ingress()
        with emit.block(f"elif kind != {emit.constant(_DEFERRED)}:"):
            for header in self._program.headers.values():
                if header.metadata:
                    clear_chunks(emit, self._storage.chunks[header.name])
            self._restore_fields()
        emit.line(f"members = sessions if {self._is(_INGRESS_CLONE, _EGRESS_CLONE)} else groups")
        with emit.block("for _ in range(replicas):"):
            self._copy()
        with emit.block("if head == tail:"):
            emit.line(f"head = {zero}")
            emit.line(f"tail = {zero}")
        emit.line(f"again[{emit.constant(NEXT)}] = head")
        emit.line(f"again[{emit.constant(COUNT)}] = tail")
        with emit.block(f"if tail != {zero}:"):
            emit.line("continue")

    def _is(self, *kinds: int) -> str:
        return " or ".join(f"kind == {self._emit.constant(kind)}" for kind in kinds)

    def _arrival(self) -> None:
        """Set what the parser knows; a clone's other metadata is set when it has been parsed."""
        emit = self._emit
        with emit.block(f"if {self._is(_FRESH, _INGRESS_CLONE)}:"):
            self._set_intrinsic("standard_metadata.ingress_port", "in_port", mask=True)
        with emit.block(f"if kind == {emit.constant(_FRESH)}:"):
            self._set_intrinsic("intrinsic_metadata.ingress_global_timestamp", "now", mask=True)
        with emit.block(f"if {self._is(_RECIRCULATED, _RESUBMITTED)}:"):
            self._restore_fields()
        with emit.block(f"if kind != {emit.constant(_INGRESS_CLONE)}:"):
            self._set_intrinsic("standard_metadata.instance_type", "kind")
            self._set_intrinsic("standard_metadata.packet_length", "size")

    def _after_ingress(self) -> None:
        """Send a clone first, then the packet: into ingress again, or to its destination."""
        emit = self._emit
        zero = emit.constant(0)
        if Resubmit in self._ingress_requests:
            with emit.block(f"if resubmit_fields != {zero}:"):
                emit.line(f"replicas = {zero}")
        if Clone in self._ingress_requests:
            with emit.block(f"if cloning != {zero}:"):
                self._put_clone(_INGRESS_CLONE)
                room = f"tail != {emit.constant(MOST_ITEMS)}"
                with emit.block(f"if copied != {zero} and replicas != {zero} and {room}:"):
                    self._put(_DEFERRED, zero, {})
                    emit.line(f"replicas = {zero}")
        if Resubmit in self._ingress_requests:
            with emit.block(f"if resubmit_fields != {zero}:"):
                self._put(_RESUBMITTED, "resubmit_fields", {})

    def _put_clone(self, kind: int) -> None:
        """Append a clone, unless its session has no ports."""
        emit = self._emit
        zero, one, two = map(emit.constant, (0, 1, 2))
        emit.line(f"session = {two} * (cloning & {emit.constant(_CLONING - 1)})")
        emit.line(f"copied = sessions[session + {one}]")
        copies = {"replica": "sessions[session]", "replicas": "copied", "group": one}
        with emit.block(f"if copied != {zero}:"):
            self._put(kind, "clone_fields", copies)

    # --- once per copy ----------------------------------------------------------------------------

    def _destination(self, members: str = "members") -> None:
        super()._destination(members)
        emit = self._emit
        with emit.block(f"if {self._is(_INGRESS_CLONE, _EGRESS_CLONE)}:"):
            emit.line("instance = kind")
        emit.line(f"cloning = {emit.constant(0)}")
        emit.line(f"recirculate_fields = {emit.constant(0)}")

    def _egress(self) -> None:
        super()._egress()
        if Clone in self._egress_requests:
            with self._emit.block(f"if cloning != {self._emit.constant(0)}:"):
                self._put_clone(_EGRESS_CLONE)

    def _leave(self) -> None:
        """Send the packet that was written to the output, or recirculate it."""
        emit = self._emit
        if Recirculate not in self._egress_requests:
            super()._leave()
            return
        size = "(to + left - sent * out_stride)"
        words = {"source": emit.constant(1), "base": "tail * out_stride", "size": size}
        with emit.block(f"if recirculate_fields != {emit.constant(0)}:"):
            self._put(_RECIRCULATED, "recirculate_fields", words)
        with emit.block("else:"):
            super()._leave()

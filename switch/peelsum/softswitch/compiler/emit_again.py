"""Writes code for packets that go through the switch more than once: cloned, resubmitted, recirculated.

Only programs with such packets are written this way. Pending work waits in `again`, a first-in first-out
list. An item has the packet's kind, the place of its bytes and the variables that it keeps. All items of a
frame are processed before the next frame; simple_switch, too, prefers them to new frames.

A clone goes before the packet that it was made from, as in simple_switch; that packet then waits as an item.
A frame makes at most `MOST_ITEMS` items, so no program can keep the switch in an endless loop. simple_switch
has no such limit: a program that recirculates every packet keeps it busy until it is killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from peelsum.softswitch.compiler.emit_machine import CLONING
from peelsum.softswitch.compiler.emit_packets import clear_chunks
from peelsum.softswitch.compiler.emit_switch import (
    EGRESS_SPEC,
    REPLICA,
    SwitchWriter,
)
from peelsum.softswitch.compiler.emitter import CURRENT_SIZE
from peelsum.softswitch.compiler.flow import Block
from peelsum.softswitch.compiler.layout import FULL
from peelsum.softswitch.compiler.storage import Variable
from peelsum.softswitch.program.operations import Clone, FieldRef, Recirculate, Resubmit, walk
from peelsum.wire import DROP_PORT

#: Most items that one frame may make; further ones are refused and counted.
MOST_ITEMS = 256
#: Words of `again`: the index of the next item, the number of items, the number refused; then the items.
NEXT, COUNT, REFUSED, ITEMS = range(4)

# The kinds of items: simple_switch's instance types, and one of our own for a packet that left ingress and
# waits for its clones.
_FRESH, _INGRESS_CLONE, _EGRESS_CLONE, _RECIRCULATED, _RESUBMITTED, _DEFERRED = 0, 1, 2, 4, 6, 8
# Words of an item: its kind, its field list, its bytes, and its destination.
_HEAD_WORDS = (
    *("kind", "fields", "source", "base", "size", "in_port"),
    *("replica", "replicas", "group", "unicast_port", "instance"),
)
_HEAD = (
    "def run(frames, stride, length, port, first, end, now, out, out_stride, out_length, out_port, "
    "out_leave, room, copies, memory, regs, wide, counts, groups, queues, sessions, again, scratch):"
)


def goes_again(blocks: Iterable[Block]) -> bool:
    """Return whether a program can make packets go through the switch more than once."""
    return any(isinstance(node, (Clone, Resubmit, Recirculate)) for block in blocks for node in walk(block))


class AgainWriter(SwitchWriter):
    """Writes the function of a program whose packets may go through it more than once."""

    def words(self) -> int:
        """Return how many words `again` needs."""
        return ITEMS + MOST_ITEMS * self._item_words()

    def source(self) -> str:
        """Return the whole text: constants, then the function."""
        emit = self._emit
        with emit.block(_HEAD):
            self._start()
            emit.line(f"head = again[{emit.constant(NEXT)}]")
            emit.line(f"tail = again[{emit.constant(COUNT)}]")
            with emit.block("while head < tail or frame < end:"):
                with emit.block("if sent + copies > room:"):
                    emit.line("break")
                self._take()
                self._pass()
            emit.line(f"again[{emit.constant(NEXT)}] = head")
            emit.line(f"again[{emit.constant(COUNT)}] = tail")
            emit.line("return frame, sent")
        return self._text()

    # --- items ------------------------------------------------------------------------------------

    def _saved(self) -> Iterator[tuple[str, int, int]]:
        """Yield what an item holds of a packet: variable, first word, count (0: Boolean; below 0: array)."""
        emit = self._emit
        word = len(_HEAD_WORDS)
        for name in (CURRENT_SIZE, "off", "left", *map(emit.stack_variable, self._program.stacks)):
            yield name, word, 1
            word += 1
        for header in self._packet_headers:
            yield emit.validity_variable(header), word, 0
            word += 1
        for chunks in self._storage.chunks.values():
            for chunk in chunks:
                count = 1 if isinstance(chunk, Variable) else chunk.count
                yield chunk.name, word, count if isinstance(chunk, Variable) else -count
                word += count

    def _item_words(self) -> int:
        *_, (_, word, count) = self._saved()
        return word + max(abs(count), 1)

    def _take(self) -> None:
        """Write code that takes the next item or, if none waits, the next frame."""
        emit = self._emit
        zero, one = emit.constant(0), emit.constant(1)
        head = _HEAD_WORDS[:6]
        with emit.block("if head < tail:"):
            emit.line(f"item = {emit.constant(ITEMS)} + head * {emit.constant(self._item_words())}")
            emit.line(f"head = head + {one}")
            for word, name in enumerate(head):
                emit.line(f"{name} = again[item + {emit.constant(word)}]")
        with emit.block("else:"):
            fresh = (emit.constant(_FRESH), zero, zero, "frame * stride", "number(length[frame])")
            for name, text in zip(head, (*fresh, "number(port[frame])"), strict=True):
                emit.line(f"{name} = {text}")
            for name in ("head", "tail", "item"):
                emit.line(f"{name} = {zero}")
            emit.line(f"frame = frame + {one}")
        emit.line(f"data = frames if source == {zero} else scratch")
        for name in ("cloning", "clone_fields", "resubmit_fields", "recirculate_fields"):
            emit.line(f"{name} = {zero}")

    def _put(self, kind: int, fields: str, whole: bool, **words: str) -> None:
        """Append an item, with all variables if `whole`. Head words not in `words` come from variables."""
        emit = self._emit
        refused = f"again[{emit.constant(REFUSED)}]"
        with emit.block(f"if tail == {emit.constant(MOST_ITEMS)}:"):
            emit.line(f"{refused} = {refused} + {emit.constant(1)}")
        with emit.block("else:"):
            emit.line(f"put = {emit.constant(ITEMS)} + tail * {emit.constant(self._item_words())}")
            given = {"kind": emit.constant(kind), "fields": fields, **words}
            for word, name in enumerate(_HEAD_WORDS):
                emit.line(f"again[put + {emit.constant(word)}] = {given.get(name, name)}")
            for name, word, count in self._saved():
                if whole or name in self._kept_names():
                    self._save(name, word, count)
            if kind == _RECIRCULATED:
                emit.line(f"copy(scratch, {words['base']}, out, sent * out_stride, {words['size']})")
            emit.line(f"tail = tail + {emit.constant(1)}")

    def _save(self, name: str, word: int, count: int) -> None:
        emit = self._emit
        if count < 0:
            with emit.block(f"for k in range({emit.constant(-count)}):"):
                emit.line(f"again[put + {emit.constant(word)} + k] = {emit.name(name)}[k]")
            return
        text = emit.name(name)
        if not count:
            text = f"{emit.constant(1)} if {text} else {emit.constant(0)}"
        emit.line(f"again[put + {emit.constant(word)}] = {text}")

    def _restore(self) -> None:
        """Restore all variables from an item."""
        emit = self._emit
        for name, word, count in self._saved():
            if count < 0:
                with emit.block(f"for k in range({emit.constant(-count)}):"):
                    emit.line(f"{name}[k] = again[item + {emit.constant(word)} + k]")
                continue
            test = "" if count else f" != {emit.constant(0)}"
            emit.line(f"{name} = again[item + {emit.constant(word)}]{test}")

    def _kept_names(self) -> frozenset[str]:
        """Return the variables of all field lists."""
        return frozenset(
            name for refs in self._program.field_lists.values() for ref in refs for name in self._names(ref)
        )

    def _names(self, ref: FieldRef) -> list[str]:
        return self._storage.names(ref)

    def _restore_fields(self) -> None:
        """Restore the metadata of the item's field list."""
        emit = self._emit
        for number, refs in self._program.field_lists.items():
            if refs:
                with emit.block(f"if fields == {emit.constant(number)}:"):
                    for ref in refs:
                        self._restore_field(ref)

    def _restore_field(self, ref: FieldRef) -> None:
        emit = self._emit
        words = {name: word for name, word, _ in self._saved()}
        found = self._storage.array(ref)
        if found is not None:
            array, place = found
            text = f"again[item + {emit.constant(words[array.name] + place)}]"
            emit.line(f"{emit.place(ref)} = {text}")
            return
        for name in self._names(ref):
            emit.line(f"{name} = again[item + {emit.constant(words[name])}]")

    # --- one pass ---------------------------------------------------------------------------------

    def _pass(self) -> None:
        """Process an item or frame from its current position to its copies in egress."""
        emit = self._emit
        with emit.block(f"if {self._is(_EGRESS_CLONE, _DEFERRED)}:"):
            self._restore()
        with emit.block("else:"):
            self._parse()
        with emit.block(f"if {self._is(_FRESH, _RECIRCULATED, _RESUBMITTED)}:"):
            self._verify_checksums()
            self._set_intrinsic("standard_metadata.parser_error", "parser_error", mask=True)
            self._once(self._blocks.ingress, "while True:" if self._exits(self._blocks.ingress) else None)
            self._after_ingress()
        with emit.block("else:"):
            with emit.block(f"if kind != {emit.constant(_DEFERRED)}:"):
                self._clear_metadata()
                self._restore_fields()
            for word, name in enumerate(_HEAD_WORDS):
                if word >= 6:
                    emit.line(f"{name} = again[item + {emit.constant(word)}]")
            emit.line(f"members = groups if kind == {emit.constant(_DEFERRED)} else sessions")
        with emit.block("for _ in range(replicas):"):
            self._copy()

    def _is(self, *kinds: int) -> str:
        return " or ".join(f"kind == {self._emit.constant(kind)}" for kind in kinds)

    def _parse(self) -> None:
        emit = self._emit
        emit.line(f"{CURRENT_SIZE} = size")
        emit.line(f"off = {emit.constant(0)}")
        emit.line("left = size")
        emit.line(f"parser_error = {emit.constant(0)}")
        self._clear()
        with emit.block(f"if {self._is(_FRESH, _INGRESS_CLONE)}:"):
            self._set_intrinsic("standard_metadata.ingress_port", "in_port", mask=True)
        with emit.block(f"if kind == {emit.constant(_FRESH)}:"):
            self._set_intrinsic("intrinsic_metadata.ingress_global_timestamp", "now", mask=True)
        with emit.block(f"if {self._is(_RECIRCULATED, _RESUBMITTED)}:"):
            self._restore_fields()
        with emit.block(f"if kind != {emit.constant(_INGRESS_CLONE)}:"):
            self._set_intrinsic("standard_metadata.instance_type", "kind")
            self._set_intrinsic("standard_metadata.packet_length", "size")
        self._once(self._blocks.parser, "while True:")
        self._clear_unparsed()

    def _clear_metadata(self) -> None:
        for header in self._program.headers.values():
            if header.metadata:
                clear_chunks(self._emit, self._storage.chunks[header.name])

    def _after_ingress(self) -> None:
        """Send a clone first, then the packet: into ingress again, or to its destination."""
        emit = self._emit
        zero = emit.constant(0)
        self._choose()
        self._drop_by_priority()
        emit.line(f"unicast_port = {emit.place(EGRESS_SPEC)}")
        emit.line("members = groups")
        emit.line(f"instance = {zero} if group == {zero} else {emit.constant(REPLICA)}")
        asked = list(walk(self._blocks.ingress))
        if any(isinstance(node, Resubmit) for node in asked):
            with emit.block(f"if resubmit_fields != {zero}:"):
                emit.line(f"replicas = {zero}")
        if any(isinstance(node, Clone) for node in asked):
            with emit.block(f"if cloning != {zero}:"):
                self._put_clone(_INGRESS_CLONE)
                room = f"tail != {emit.constant(MOST_ITEMS)}"
                with emit.block(f"if copied != {zero} and replicas != {zero} and {room}:"):
                    self._put(_DEFERRED, zero, whole=True)
                    emit.line(f"replicas = {zero}")
        if any(isinstance(node, Resubmit) for node in asked):
            with emit.block(f"if resubmit_fields != {zero}:"):
                self._put(_RESUBMITTED, "resubmit_fields", whole=False)

    def _put_clone(self, kind: int) -> None:
        """Append a clone, unless its session has no ports."""
        emit = self._emit
        zero, one, two = map(emit.constant, (0, 1, 2))
        emit.line(f"session = {two} * (cloning & {emit.constant(CLONING - 1)})")
        emit.line(f"copied = sessions[session + {one}]")
        with emit.block(f"if copied != {zero}:"):
            self._put(
                kind,
                "clone_fields",
                whole=kind == _EGRESS_CLONE,
                replica="sessions[session]",
                replicas="copied",
                group=one,
                instance=emit.constant(kind),
            )

    def _copy(self) -> None:
        emit = self._emit
        zero, one, two = map(emit.constant, (0, 1, 2))
        with emit.block(f"if group != {zero}:"):
            emit.line(f"egress_port = members[replica] & {emit.constant(0x1FF)}")
            emit.line(f"egress_rid = members[replica + {one}]")
            emit.line(f"replica = replica + {two}")
        with emit.block("else:"):
            emit.line("egress_port = unicast_port")
            emit.line(f"egress_rid = {self._kept_rid()}")
        if self._queued:
            emit.line("depth = enqueue(queues, egress_port, now)")
            with emit.block(f"if depth == {emit.constant(FULL)}:"):
                emit.line("continue")
        emit.line(f"cloning = {zero}")
        emit.line(f"recirculate_fields = {zero}")
        emit.copied = self._copied_names()
        self._take_copies()
        self._egress_intrinsics()
        self._once(self._blocks.egress, "while True:" if self._exits(self._blocks.egress) else None)
        if any(isinstance(node, Clone) for node in walk(self._blocks.egress)):
            with emit.block(f"if cloning != {zero}:"):
                self._put_clone(_EGRESS_CLONE)
        with emit.block(f"if {emit.place(EGRESS_SPEC)} != {emit.constant(DROP_PORT)}:"):
            self._send()
        emit.copied = frozenset()

    def _send(self) -> None:
        """Write the packet to the output, and send or recirculate it."""
        emit = self._emit
        self._write_out()
        if not any(isinstance(node, Recirculate) for node in walk(self._blocks.egress)):
            self._leave()
            return
        with emit.block(f"if recirculate_fields != {emit.constant(0)}:"):
            self._put(
                _RECIRCULATED,
                "recirculate_fields",
                whole=False,
                source=emit.constant(1),
                base="tail * out_stride",
                size="(to + left - sent * out_stride)",
            )
        with emit.block("else:"):
            self._leave()

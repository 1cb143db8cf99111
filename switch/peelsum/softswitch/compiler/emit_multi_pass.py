"""Writes code for programs that clone, resubmit or recirculate packets.

Such packets wait in `pass_queue`, a first-in first-out list. An item has the packet's kind, where its bytes
are, and the variables that it keeps. As in simple_switch, all items of a frame are processed before the next
frame.

As in simple_switch, a clone goes before the packet that it was made from, which waits as an item meanwhile.
A frame makes at most `MOST_ITEMS` items, so no program can loop forever. simple_switch has no such limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from peelsum.softswitch.compiler.emit_packets import clear_chunks
from peelsum.softswitch.compiler.emit_statements import CLONE_FLAG
from peelsum.softswitch.compiler.emit_switch import Blocks, SwitchWriter
from peelsum.softswitch.compiler.emitter import CURRENT_SIZE, Emitter
from peelsum.softswitch.compiler.layout import StateLayout, Variable
from peelsum.softswitch.program.operations import (
    Assert,
    Clone,
    FieldRef,
    Recirculate,
    Resubmit,
    Truncate,
    walk,
)

#: Most items that one frame may make; further ones are refused and counted.
MOST_ITEMS = 256
#: Words of `pass_queue`: the index of the next item, the number of items, the number refused; then the items.
NEXT_ITEM, ITEM_COUNT, REFUSED_COUNT, FIRST_ITEM = range(4)
# The kinds of items: simple_switch's instance types, and `_DEFERRED`: a packet that has passed ingress and
# waits until its clones have been sent.
_FRESH, _INGRESS_CLONE, _EGRESS_CLONE, _RECIRCULATED, _RESUBMITTED, _DEFERRED = 0, 1, 2, 4, 6, 8
# Kinds whose items have all variables of the packet, so that it is not parsed.
_UNPARSED_KINDS = (_EGRESS_CLONE, _DEFERRED)
# The first words of an item: its kind, its field list, its bytes, and its destination. Then come the fields
# of all field lists, and for some kinds the packet's variables.
_HEADER_WORDS = (
    *("kind", "fields", "source", "base", "size", "in_port"),
    *("replica", "replicas", "group", "unicast_port"),
)


class MultiPassWriter(SwitchWriter):
    """Writes the function of a program that clones, resubmits or recirculates packets."""

    arguments = f"{SwitchWriter.arguments}, sessions, pass_queue, scratch"

    def __init__(self, emit: Emitter, layout: StateLayout, blocks: Blocks, queued: bool) -> None:
        super().__init__(emit, layout, blocks, queued)
        self._ingress_requests = {type(node) for node in walk(blocks.ingress)}
        self._egress_requests = {type(node) for node in walk(blocks.egress)}
        self._flags = [emit.validity_variables[name] for name in self._packet_headers]
        self._flags += ["failed"] if self._uses(Assert) else []

    def queue_words(self) -> int:
        """Return how many words `pass_queue` needs."""
        return FIRST_ITEM + MOST_ITEMS * self._item_words()

    def _start(self) -> None:
        """Load the queue's indices in addition, which the function keeps in variables."""
        super()._start()
        emit = self._emit
        emit.line(f"head = pass_queue[{NEXT_ITEM}]", f"tail = pass_queue[{ITEM_COUNT}]", "frames = data")

    def _field_list_variables(self) -> Iterator[tuple[FieldRef, str, int]]:
        """Yield the variables of all fields in field lists, and their words in an item."""
        refs = dict.fromkeys(ref for refs in self._program.field_lists.values() for ref in refs)
        variables = [(ref, name) for ref in refs for name in self._emit.places(ref)]
        for word, (ref, name) in enumerate(variables, len(_HEADER_WORDS)):
            yield ref, name, word

    def _packet_variables(self) -> Iterator[tuple[str, int, int]]:
        """Yield a packet's variables, their words in an item, and the number of elements, 0 for a scalar."""
        emit = self._emit
        stacks = emit.stack_variables.values()
        others = [*emit.varbit_variables.values(), *(["truncated_to"] if self._uses(Truncate) else [])]
        counts = dict.fromkeys((CURRENT_SIZE, "parsed", "remaining", *stacks, *self._flags, *others), 0)
        for chunk in (chunk for chunks in self._storage.chunks.values() for chunk in chunks):
            counts[chunk.name] = 0 if isinstance(chunk, Variable) else chunk.count
        word = len(_HEADER_WORDS) + len(list(self._field_list_variables()))
        for name, count in counts.items():
            yield name, word, count
            word += max(count, 1)

    def _item_words(self) -> int:
        *_, (_, word, count) = self._packet_variables()
        return word + max(count, 1)

    def _append_item(self, kind: int, fields: str, words: Mapping[str, str]) -> None:
        """Append an item. Its header words come from `words`, or else from variables of the same names."""
        emit = self._emit
        refused = f"pass_queue[{REFUSED_COUNT}]"
        emit.nested(f"if tail == {MOST_ITEMS}:", f"{refused} = {refused} + 1")
        with emit.block("else:"):
            emit.line(f"new_item = {FIRST_ITEM} + tail * {self._item_words()}")
            header_words = {"kind": str(kind), "fields": fields, **words}
            for word, name in enumerate(_HEADER_WORDS):
                emit.line(f"pass_queue[new_item + {word}] = {header_words.get(name, name)}")
            for _, name, word in self._field_list_variables():
                emit.line(f"pass_queue[new_item + {word}] = {name}")
            for name, word, count in self._packet_variables() if kind in _UNPARSED_KINDS else ():
                place, variable = f"pass_queue[new_item + {word}", emit.name(name)
                if count:
                    emit.nested(f"for k in range({count}):", f"{place} + k] = {variable}[k]")
                else:
                    emit.line(f"{place}] = {variable}")
            if kind == _RECIRCULATED:
                emit.line(f"copy(scratch, {words['base']}, out, sent * out_stride, {words['size']})")
            emit.line("tail = tail + 1")

    def _restore_fields(self) -> None:
        emit = self._emit
        for number, refs in self._program.field_lists.items():
            with emit.block(f"if fields == {number}:"):
                for ref, name, word in self._field_list_variables():
                    if ref in refs:
                        emit.line(f"{name} = pass_queue[item + {word}]")

    def _packet(self) -> None:
        """Process an item, or a new frame if there is none; continue with the next frame when none waits."""
        emit = self._emit
        emit.line(f"item = {FIRST_ITEM} + head * {self._item_words()}")
        with emit.block("if head < tail:"):
            for word, name in enumerate(_HEADER_WORDS):
                emit.line(f"{name} = pass_queue[item + {word}]")
            emit.line("head = head + 1")
        with emit.block("else:"):
            emit.line(f"kind = {_FRESH}", "fields = 0", "source = 0", "base = frame * stride")
            emit.line("size = number(length[frame])", "in_port = number(port[frame])")
        emit.line("data = frames if source == 0 else scratch")
        for name in ("cloning", "clone_fields", "resubmit_fields", "recirculate_fields"):
            emit.line(f"{name} = 0")
        with emit.block(f"if {self._kind_test(*_UNPARSED_KINDS)}:"):
            for name, word, count in self._packet_variables():
                place = f"pass_queue[item + {word}"
                if count:
                    emit.nested(f"for k in range({count}):", f"{name}[k] = {place} + k]")
                else:
                    emit.line(f"{name} = {place}]" + (" != 0" if name in self._flags else ""))
        with emit.block("else:"):
            emit.line(f"{CURRENT_SIZE} = size")
            self._parse()
        with emit.block(f"if {self._kind_test(_FRESH, _RECIRCULATED, _RESUBMITTED)}:"):
            self._ingress()
            self._choose_copies()
            self._after_ingress()
        with emit.block(f"elif kind != {_DEFERRED}:"):
            for header in self._program.headers.values():
                if header.metadata:
                    clear_chunks(emit, self._storage.chunks[header.name])
            self._restore_fields()
        emit.line(f"members = sessions if {self._kind_test(_INGRESS_CLONE, _EGRESS_CLONE)} else groups")
        with emit.block("for _ in range(replicas):"):
            self._write_copy()
        emit.nested("if head == tail:", "head = 0", "tail = 0")
        emit.line(f"pass_queue[{NEXT_ITEM}] = head", f"pass_queue[{ITEM_COUNT}] = tail")
        emit.nested("if tail != 0:", "continue")

    def _kind_test(self, *kinds: int) -> str:
        return " or ".join(f"kind == {kind}" for kind in kinds)

    def _set_arrival_metadata(self) -> None:
        """Set the metadata that parsers may read; clones get the other metadata after they are parsed."""
        emit = self._emit
        with emit.block(f"if {self._kind_test(_FRESH, _INGRESS_CLONE)}:"):
            self._set_intrinsic("standard_metadata.ingress_port", "in_port", mask=True)
        with emit.block(f"if kind == {_FRESH}:"):
            self._set_intrinsic("intrinsic_metadata.ingress_global_timestamp", "now", mask=True)
        with emit.block(f"if {self._kind_test(_RECIRCULATED, _RESUBMITTED)}:"):
            self._restore_fields()
        with emit.block(f"if kind != {_INGRESS_CLONE}:"):
            self._set_intrinsic("standard_metadata.instance_type", "kind")
            self._set_intrinsic("standard_metadata.packet_length", "size")

    def _after_ingress(self) -> None:
        """Append the clone, then either resubmit the packet or let it continue to its destination."""
        emit = self._emit
        if Resubmit in self._ingress_requests:
            emit.nested("if resubmit_fields != 0:", "replicas = 0")
        if Clone in self._ingress_requests:
            with emit.block("if cloning != 0:"):
                self._append_clone(_INGRESS_CLONE)
                room = f"tail != {MOST_ITEMS}"
                with emit.block(f"if copied != 0 and replicas != 0 and {room}:"):
                    self._append_item(_DEFERRED, "0", {})
                    emit.line("replicas = 0")
        if Resubmit in self._ingress_requests:
            with emit.block("if resubmit_fields != 0:"):
                self._append_item(_RESUBMITTED, "resubmit_fields", {})

    def _append_clone(self, kind: int) -> None:
        """Append a clone, unless its session has no ports."""
        emit = self._emit
        emit.line(f"session = 2 * (cloning & {CLONE_FLAG - 1})", "copied = sessions[session + 1]")
        copies = {"replica": "sessions[session]", "replicas": "copied", "group": "1"}
        with emit.block("if copied != 0:"):
            self._append_item(kind, "clone_fields", copies)

    def _destination(self, members: str = "members") -> None:
        """Write code for a copy's port, and reset the requests that egress may make for this copy."""
        super()._destination(members)
        emit = self._emit
        emit.nested(f"if {self._kind_test(_INGRESS_CLONE, _EGRESS_CLONE)}:", "instance = kind")
        emit.line("cloning = 0", "recirculate_fields = 0")

    def _egress(self) -> None:
        super()._egress()
        if Clone in self._egress_requests:
            with self._emit.block("if cloning != 0:"):
                self._append_clone(_EGRESS_CLONE)

    def _write_departure(self) -> None:
        """Send the packet that was written to the output, or recirculate it."""
        emit = self._emit
        if Recirculate not in self._egress_requests:
            super()._write_departure()
            return
        words = {"source": "1", "base": "tail * out_stride", "size": "sent_size"}
        with emit.block("if recirculate_fields != 0:"):
            self._append_item(_RECIRCULATED, "recirculate_fields", words)
        with emit.block("else:"):
            super()._write_departure()

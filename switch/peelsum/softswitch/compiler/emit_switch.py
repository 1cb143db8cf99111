"""Writes the code around the program's own parser and pipelines.

It follows BMv2's simple_switch: intrinsic metadata, precedence at the end of ingress,
multicast copies, checksums, deparsing. The program's statements come from `emit_statements`.
"""

from __future__ import annotations

from typing import NamedTuple

from peelsum.softswitch.compiler.emit_packets import checksum, clear_chunks, deparse, hashed_bytes
from peelsum.softswitch.compiler.emit_statements import Statements
from peelsum.softswitch.compiler.emitter import CURRENT_SIZE, Emitter
from peelsum.softswitch.compiler.flow import Block
from peelsum.softswitch.compiler.layout import FULL, StateLayout, Variable
from peelsum.softswitch.program import operations as ops
from peelsum.softswitch.program.model import Checksum, Program
from peelsum.wire import DROP_PORT

_EGRESS_SPEC = ops.FieldRef("standard_metadata", "egress_spec")
#: standard_metadata.instance_type of a multicast copy.
_REPLICA = 5


class Blocks(NamedTuple):
    """The code of a program, in the order of a packet's path."""

    parser: Block
    ingress: Block
    egress: Block


def architecture_fields(program: Program) -> list[ops.FieldRef]:
    """Return the fields that the architecture needs even if the program does not use them."""
    group = program.intrinsic("intrinsic_metadata.mcast_grp")
    return [_EGRESS_SPEC, *([] if group is None else [group])]


class SwitchWriter:
    """Writes the function of one program. queued: whether ports have queues."""

    arguments = (
        "data, stride, length, port, first, end, now, out, out_stride, out_length, out_port, out_leave, "
        "room, copies, memory, regs, wide, counts, groups, queues"
    )

    def __init__(self, emit: Emitter, layout: StateLayout, blocks: Blocks, queued: bool) -> None:
        self._program = program = emit.program
        self._storage = emit.storage
        self._blocks = blocks
        self._queued = queued
        self._emit = emit
        self._statements = Statements(emit, layout)
        self._packet_headers = [header.name for header in program.headers.values() if not header.metadata]
        # Declare the hit variables that the program reads before the code that sets them is written.
        for block in blocks:
            for node in ops.walk(block):
                if isinstance(node, ops.Hit):
                    self._emit.hit(node.table)

    def source(self) -> str:
        """Return the whole text: constants, then the function."""
        emit = self._emit
        with emit.block(f"def run({self.arguments}):"):
            self._start()
            with emit.block("while frame < end:"):
                with emit.block("if sent + copies > room:"):
                    emit.line("break")
                self._packet()
                emit.line("frame = frame + 1")
            emit.line("return frame, sent")
        return "\n".join([*self._emit.constants(), "", "", *self._emit.lines, ""])

    # --- once per call ----------------------------------------------------------------------------

    def _start(self) -> None:
        """Allocate the arrays, and start with the first frame."""
        emit = self._emit
        key_words = max((len(plan.words) + len(plan.ranges) for plan in emit.plans.values()), default=0)
        emit.line(f"keys = array64({max(key_words, 1)})")
        for array in self._storage.arrays():
            size = next(size for size in (8, 16, 32, 64) if array.bits <= size)
            emit.line(f"{array.name} = array{size}({array.count})")
            if array.name in self._copied_names():
                emit.line(f"e_{array.name} = array{size}({array.count})")
        hashes = [node for block in self._blocks for node in ops.walk(block) if isinstance(node, ops.Hash)]
        if hashes:
            emit.line(f"hashed = array8({max(1, *map(hashed_bytes, hashes), 1)})")
        emit.line("frame = first")
        emit.line("sent = 0")

    # --- once per packet --------------------------------------------------------------------------

    def _packet(self) -> None:
        """Take a frame through parser, ingress and, for each copy, egress."""
        emit = self._emit
        emit.line("size = number(length[frame])")
        emit.line(f"{CURRENT_SIZE} = size")
        emit.line("base = frame * stride")
        self._parse()
        self._ingress()
        self._choose_copies()
        with emit.block("for _ in range(replicas):"):
            self._write_copy()

    def _parse(self) -> None:
        """Clear all headers and metadata, and run the parser."""
        emit = self._emit
        emit.line("parsed = 0")
        emit.line("remaining = size")
        emit.line("parser_error = 0")
        self._clear()
        self._set_arrival_metadata()
        self._write_once(self._blocks.parser, "while True:")
        self._clear_unparsed()

    def _set_arrival_metadata(self) -> None:
        """Set the metadata that the architecture gives to a packet that arrives."""
        self._set_intrinsic("standard_metadata.ingress_port", "number(port[frame])", mask=True)
        self._set_intrinsic("standard_metadata.packet_length", "size")
        self._set_intrinsic("intrinsic_metadata.ingress_global_timestamp", "now", mask=True)

    def _ingress(self) -> None:
        """Verify checksums, and run ingress."""
        self._verify_checksums()
        self._set_intrinsic("standard_metadata.parser_error", "parser_error", mask=True)
        self._write_once(self._blocks.ingress, "while True:" if self._exits(self._blocks.ingress) else None)

    def _clear(self) -> None:
        """Set metadata and headers to 0 and make headers invalid."""
        emit = self._emit
        for header in self._program.headers.values():
            if not header.metadata:
                emit.line(f"{emit.validity(header.name)} = False")
            chunks = self._storage.chunks[header.name]
            clear_chunks(emit, [chunk for chunk in chunks if header.metadata or isinstance(chunk, Variable)])
        for hit in emit.hit_variables.values():
            emit.line(f"{hit} = False")
        for stack in self._program.stacks:
            emit.line(f"{emit.stack_count(stack)} = 0")
        emit.filled = dict.fromkeys(self._program.stacks, 0)

    def _clear_unparsed(self) -> None:
        """Clear the arrays of headers that were not extracted; extraction overwrites the others."""
        emit = self._emit
        for header in self._packet_headers:
            arrays = [chunk for chunk in self._storage.chunks[header] if not isinstance(chunk, Variable)]
            if arrays:
                with emit.block(f"if not {emit.validity(header)}:"):
                    clear_chunks(emit, arrays)

    def _write_once(self, block: Block, head: str | None) -> None:
        """Write a block inside `head`, a loop that runs once so that `break` leaves it; None for no loop."""
        if not block:
            return
        if head is None:
            self._statements.block(block)
            return
        self._emit.line("leaving = False")
        with self._emit.block(head):
            self._statements.block(block)
            self._emit.line("break")

    @staticmethod
    def _exits(block: Block) -> bool:
        return any(isinstance(node, ops.Exit) for node in ops.walk(block))

    def _set_intrinsic(self, name: str, text: str, mask: bool = False) -> None:
        """Set a field of the architecture, if the program uses it."""
        ref = self._program.intrinsic(name)
        if ref is None or not self._storage.has(ref):
            return
        if mask:
            text = f"({text}) & {(1 << self._emit.bits(ref)) - 1}"
        self._emit.line(f"{self._emit.place(ref)} = {text}")

    def _verify_checksums(self) -> None:
        """Set `checksum_error` if a checksum that the program verifies is wrong."""
        emit = self._emit
        for item in self._program.checksums:
            if item.verify:
                with emit.block(self._checksum_head(item)):
                    checksum(emit, item)
                    with emit.block(f"if folded != {emit.place(item.target)}:"):
                        self._set_intrinsic("standard_metadata.checksum_error", "1")

    def _checksum_head(self, item: Checksum) -> str:
        condition = "True" if item.condition is None else self._emit.expressions.condition(item.condition)
        return f"if {self._emit.validity(item.target.header)} and {condition}:"

    def _choose_copies(self) -> None:
        """Choose the copies to send: multicast takes precedence over unicast, as in simple_switch."""
        emit = self._emit
        spec = emit.place(_EGRESS_SPEC)
        group_ref = self._program.intrinsic("intrinsic_metadata.mcast_grp")
        group = emit.place(group_ref) if group_ref is not None else "0"
        emit.line(f"group = {group} & 0xFFFF")
        with emit.block("if group != 0:"):
            emit.line("replica = groups[2 * group]")
            emit.line("replicas = groups[2 * group + 1]")
        with emit.block("else:"):
            emit.line("replica = 0")
            emit.line(f"replicas = 0 if {spec} == {DROP_PORT} else 1")
        # Drop packets whose priority is not 0, as simple_switch with one queue per port does.
        ref = self._program.intrinsic("intrinsic_metadata.priority")
        if ref is not None and self._storage.has(ref):
            with emit.block(f"if {emit.place(ref)} != 0:"):
                emit.line("replicas = 0")
        emit.line(f"unicast_port = {spec}")

    # --- once per copy ----------------------------------------------------------------------------

    def _write_copy(self) -> None:
        """Take one copy of a packet through its port's queue, egress and deparser."""
        emit = self._emit
        self._destination()
        if self._queued:
            emit.line("depth = enqueue(queues, egress_port, now)")
            with emit.block(f"if depth == {FULL}:"):
                emit.line("continue")
        emit.copied = self._copied_names()
        self._copy_variables()
        self._egress_intrinsics()
        self._egress()
        with emit.block(f"if {emit.place(_EGRESS_SPEC)} != {DROP_PORT}:"):
            self._send()
        emit.copied = frozenset()

    def _destination(self, members: str = "groups") -> None:
        """Write code for a copy's port; `members` is the array that lists where copies go."""
        emit = self._emit
        with emit.block("if group != 0:"):
            emit.line(f"egress_port = {members}[replica] & 0x1FF")
            emit.line(f"egress_rid = {members}[replica + 1]")
            emit.line("replica = replica + 2")
            emit.line(f"instance = {_REPLICA}")
        with emit.block("else:"):
            emit.line("egress_port = unicast_port")
            emit.line(f"egress_rid = {self._ingress_rid()}")
            emit.line("instance = 0")

    def _egress(self) -> None:
        self._write_once(self._blocks.egress, "while True:" if self._exits(self._blocks.egress) else None)

    def _ingress_rid(self) -> str:
        """Return the text of `egress_rid` as ingress left it, which a unicast packet keeps."""
        rid = self._program.intrinsic("intrinsic_metadata.egress_rid")
        is_stored = rid is not None and self._storage.has(rid)
        return self._emit.place(rid) if rid is not None and is_stored else "0"

    def _egress_intrinsics(self) -> None:
        """Set the metadata that the architecture gives to a packet in egress."""
        self._set_intrinsic("standard_metadata.egress_port", "egress_port")
        self._set_intrinsic("standard_metadata.egress_spec", "0")
        self._set_intrinsic("standard_metadata.instance_type", "instance")
        self._set_intrinsic("standard_metadata.packet_length", self._emit.name(CURRENT_SIZE))
        self._set_intrinsic("intrinsic_metadata.egress_rid", "egress_rid")
        waiting = "waiting_time(queues, egress_port, now)" if self._queued else "0"
        self._set_intrinsic("intrinsic_metadata.egress_global_timestamp", f"now + {waiting}", mask=True)
        self._set_intrinsic("queueing_metadata.enq_timestamp", "now", mask=True)
        self._set_intrinsic("queueing_metadata.deq_timedelta", waiting, mask=True)
        # Egress runs when a packet is queued, when the queue's depth at its departure is not known yet. The
        # depth before the packet's burst is reported instead.
        self._set_intrinsic("queueing_metadata.enq_qdepth", "depth" if self._queued else "0")
        burst_depth = "burst_depth(queues, egress_port)" if self._queued else "0"
        self._set_intrinsic("queueing_metadata.deq_qdepth", burst_depth)

    def _copied_names(self) -> frozenset[str]:
        """Return the variables that egress changes, so that each copy of a packet needs its own."""
        targets: list[ops.Target] = [item.target for item in self._program.checksums if item.update]
        headers: list[str] = []
        stacks: list[str] = []
        for node in ops.walk(self._blocks.egress):
            if isinstance(node, (ops.Assign, ops.Hash, ops.ReadRegister)):
                targets.append(node.target)
            elif isinstance(node, ops.AssignIndexed):
                targets += node.targets
            elif isinstance(node, ops.SetValidity):
                headers.append(node.header)
            elif isinstance(node, ops.CopyHeader):
                headers.append(node.target)
            elif isinstance(node, (ops.ShiftStack, ops.CopyStack)):
                stack = node.target if isinstance(node, ops.CopyStack) else node.stack
                headers += self._program.stacks[stack]
                stacks.append(stack)
        names = {CURRENT_SIZE, *(name for target in targets for name in self._storage.names(target))}
        names.update(map(self._emit.stack_variable, stacks))
        for header in headers:
            if not self._program.headers[header].metadata:
                names.add(self._emit.validity_variable(header))
            names.update(chunk.name for chunk in self._storage.chunks[header])
        return frozenset(names)

    def _copy_variables(self) -> None:
        """Copy the variables that egress changes, for this copy of the packet."""
        emit = self._emit
        arrays = {array.name: array for array in self._storage.arrays()}
        for name in sorted(emit.copied):
            if name not in arrays:
                emit.line(f"{emit.name(name)} = {name}")
                continue
            with emit.block(f"for k in range({arrays[name].count}):"):
                emit.line(f"{emit.name(name)}[k] = {name}[k]")

    def _send(self) -> None:
        """Update checksums, write the packet to the output, and send it."""
        emit = self._emit
        for item in self._program.checksums:
            if item.update:
                with emit.block(self._checksum_head(item)):
                    checksum(emit, item)
                    emit.line(f"{emit.place(item.target)} = folded")
        emit.line("to = sent * out_stride")
        for header in self._program.deparser:
            deparse(emit, header)
        emit.line("copy(out, to, data, base + parsed, remaining)")
        self._write_departure()

    def _write_departure(self) -> None:
        """Send the packet that was written to the output."""
        emit = self._emit
        emit.line("out_length[sent] = to + remaining - sent * out_stride")
        emit.line("out_port[sent] = egress_port")
        if self._queued:
            emit.line(
                "out_leave[sent] = schedule_departure(queues, egress_port, now, number(out_length[sent]))"
            )
        emit.line("sent = sent + 1")

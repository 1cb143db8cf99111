"""Writes the code around the program's own parser and pipelines.

It follows BMv2's simple_switch: intrinsic metadata, precedence at the end of ingress,
multicast copies, checksums, deparsing. The program's statements come from `emit_statements`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

from peelsum.softswitch.compiler.emit_externs import send_digest
from peelsum.softswitch.compiler.emit_packets import checksum, clear_chunks, deparse, words_of_checksum
from peelsum.softswitch.compiler.emit_statements import Statements
from peelsum.softswitch.compiler.emitter import CURRENT_SIZE, Emitter
from peelsum.softswitch.compiler.flow import Apply, Block
from peelsum.softswitch.compiler.layout import FULL, StateLayout, Variable
from peelsum.softswitch.program import operations as ops
from peelsum.softswitch.program.model import Checksum
from peelsum.wire import DROP_PORT

EGRESS_SPEC = ops.FieldRef("standard_metadata", "egress_spec")
#: standard_metadata.instance_type of a multicast copy.
_REPLICA = 5


class Blocks(NamedTuple):
    """The code of a program, in the order of a packet's path."""

    parser: Block
    ingress: Block
    egress: Block
    deparser: Block = ()


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
        self._kinds = {type(node) for block in blocks for node in ops.walk(block)}
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
                emit.nested("if sent + copies > room:", "break")
                self._packet()
                emit.line("frame = frame + 1")
            emit.line("return frame, sent")
        return "\n".join([*self._emit.constants(), "", "", *self._emit.lines, ""])

    def _start(self) -> None:
        """Allocate the arrays, and start with the first frame."""
        emit = self._emit
        key_words = max(
            (len(plan.words) + len(plan.ranges) * plan.range_limbs for plan in emit.plans.values()), default=0
        )
        emit.line(f"keys = array64({max(key_words, 1)})")
        for array in self._storage.arrays():
            size = next(size for size in (8, 16, 32, 64) if array.bits <= size)
            emit.line(f"{array.name} = array{size}({array.count})")
            if array.name in self._copied_names():
                emit.line(f"e_{array.name} = array{size}({array.count})")
        program = self._program
        hashes = [node for block in self._blocks for node in ops.walk(block) if isinstance(node, ops.Hash)]
        checksums = [item for item in program.checksums if words_of_checksum(emit, item) is None]
        selectors = [profile.selector for profile in program.profiles.values()]
        inputs = [node.inputs for node in hashes] + [item.inputs for item in checksums]
        inputs += [selector.inputs for selector in selectors if selector is not None]
        if inputs:
            most_bytes = max(sum(-(-bits // 8) for _, _, bits in each) for each in inputs)
            payload = " + stride" if any(item.payload for item in program.checksums) else ""
            emit.line(f"hashed = array8({max(1, most_bytes)}{payload})")
        emit.line("frame = first", "sent = 0")

    def _packet(self) -> None:
        """Take a frame through parser, ingress and, for each copy, egress."""
        emit = self._emit
        emit.line("size = number(length[frame])", f"{CURRENT_SIZE} = size", "base = frame * stride")
        self._parse()
        self._ingress()
        self._choose_copies()
        with emit.block("for _ in range(replicas):"):
            self._write_copy()

    def _parse(self) -> None:
        """Set metadata and headers to 0, make headers invalid, and run the parser."""
        emit, chunks = self._emit, self._storage.chunks
        emit.line("parsed = 0", "remaining = size", "parser_error = 0")
        for header in self._program.headers.values():
            if header.metadata:
                clear_chunks(emit, chunks[header.name])
            else:
                emit.line(f"{emit.validity(header.name)} = False")
                clear_chunks(emit, [chunk for chunk in chunks[header.name] if isinstance(chunk, Variable)])
        for hit in emit.hit_variables.values():
            emit.line(f"{hit} = False")
        for header in self._program.headers.values():
            if header.varbit:
                emit.line(f"{emit.varbit_bits(header.name)} = 0")
        if self._uses(ops.Truncate):
            emit.line(f"truncated_to = {FULL}")
        if self._uses(ops.Assert):
            emit.line("failed = False")
        for stack in self._program.stacks:
            emit.line(f"{emit.stack_count(stack)} = 0")
        emit.filled = dict.fromkeys(self._program.stacks, 0)
        self._set_arrival_metadata()
        self._write_once(self._blocks.parser, leaves=True)
        # Clear the arrays of headers that were not extracted; extraction overwrites the others.
        for name in self._packet_headers:
            arrays = [chunk for chunk in chunks[name] if not isinstance(chunk, Variable)]
            if arrays:
                with emit.block(f"if not {emit.validity(name)}:"):
                    clear_chunks(emit, arrays)

    def _set_arrival_metadata(self) -> None:
        """Set the metadata that the architecture gives to a packet that arrives."""
        self._set_intrinsic("standard_metadata.ingress_port", "number(port[frame])", mask=True)
        self._set_intrinsic("standard_metadata.packet_length", "size")
        self._set_intrinsic("intrinsic_metadata.ingress_global_timestamp", "now", mask=True)

    def _ingress(self) -> None:
        """Set `checksum_error` if a checksum that the program verifies is wrong, and run ingress."""
        emit = self._emit
        for item in self._program.checksums:
            if item.verify:
                with emit.block(self._checksum_head(item)):
                    checksum(emit, item)
                    with emit.block(f"if folded != {emit.place(item.target)}:"):
                        self._set_intrinsic("standard_metadata.checksum_error", "1")
        self._set_intrinsic("standard_metadata.parser_error", "parser_error", mask=True)
        if self._uses(ops.SendDigest):
            emit.line("digest = 0")
        self._write_once(self._blocks.ingress)
        if self._uses(ops.SendDigest):
            send_digest(emit)

    def _uses(self, kind: type[ops.Primitive]) -> bool:
        return kind in self._kinds

    def _write_once(self, block: Block, leaves: bool = False) -> None:
        """Write a block; one that `leaves` or exits is inside a loop that runs once, so `break` leaves it."""
        if leaves or any(isinstance(node, ops.Exit) for node in ops.walk(block)):
            if block:
                self._emit.line("leaving = False")
                with self._emit.block("while True:"):
                    self._statements.block(block)
                    self._emit.line("break")
        else:
            self._statements.block(block)

    def _set_intrinsic(self, name: str, text: str, mask: bool = False) -> None:
        """Set a field of the architecture, if the program uses it."""
        ref = self._program.intrinsic(name)
        if ref is None or ref not in self._storage.fields:
            return
        if mask:
            text = f"({text}) & {(1 << self._emit.bits(ref)) - 1}"
        self._emit.line(f"{self._emit.place(ref)} = {text}")

    def _checksum_head(self, item: Checksum) -> str:
        condition = "True" if item.condition is None else self._emit.expressions.condition(item.condition)
        return f"if {self._emit.validity(item.target.header)} and {condition}:"

    def _choose_copies(self) -> None:
        """Choose the copies to send: multicast takes precedence over unicast, as in simple_switch."""
        emit = self._emit
        spec = emit.place(EGRESS_SPEC)
        group_ref = self._program.intrinsic("intrinsic_metadata.mcast_grp")
        group = emit.place(group_ref) if group_ref is not None else "0"
        emit.line(f"group = {group} & 0xFFFF")
        emit.nested("if group != 0:", "replica = groups[2 * group]", "replicas = groups[2 * group + 1]")
        emit.nested("else:", "replica = 0", f"replicas = 0 if {spec} == {DROP_PORT} else 1")
        # Drop packets whose priority is not 0, as simple_switch with one queue per port does.
        ref = self._program.intrinsic("intrinsic_metadata.priority")
        if ref is not None and ref in self._storage.fields:
            emit.nested(f"if {emit.place(ref)} != 0:", "replicas = 0")
        emit.line(f"unicast_port = {spec}")
        if self._uses(ops.Assert):
            emit.nested("if failed:", "replicas = 0")

    def _write_copy(self) -> None:
        """Take one copy of a packet through its port's queue, egress and deparser."""
        emit = self._emit
        self._destination()
        if self._queued:
            emit.line("depth = enqueue(queues, egress_port, now)")
            emit.nested(f"if depth == {FULL}:", "continue")
        emit.copied = self._copied_names()
        arrays = {array.name: array.count for array in self._storage.arrays()}
        for name in sorted(emit.copied):
            if name in arrays:
                emit.nested(f"for k in range({arrays[name]}):", f"{emit.name(name)}[k] = {name}[k]")
            else:
                emit.line(f"{emit.name(name)} = {name}")
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
        self._egress()
        passed = f" and not {emit.name('failed')}" if self._uses(ops.Assert) else ""
        with emit.block(f"if {emit.place(EGRESS_SPEC)} != {DROP_PORT}{passed}:"):
            self._send()
        emit.copied = frozenset()

    def _destination(self, members: str = "groups") -> None:
        """Write code for a copy's port; `members` is the array that lists where copies go."""
        emit = self._emit
        with emit.block("if group != 0:"):
            emit.line(f"egress_port = {members}[replica] & 0x1FF", f"egress_rid = {members}[replica + 1]")
            emit.line("replica = replica + 2", f"instance = {_REPLICA}")
        rid_field = self._program.intrinsic("intrinsic_metadata.egress_rid")
        has_rid = rid_field is not None and rid_field in self._storage.fields
        rid = emit.place(rid_field) if rid_field is not None and has_rid else "0"  # as ingress left it
        emit.nested("else:", "egress_port = unicast_port", f"egress_rid = {rid}", "instance = 0")

    def _egress(self) -> None:
        self._write_once(self._blocks.egress)

    def _copied_names(self) -> frozenset[str]:
        """Return the variables that egress changes, so that each copy of a packet needs its own."""
        targets: list[ops.Target] = [item.target for item in self._program.checksums if item.update]
        headers: list[str] = []
        names = {CURRENT_SIZE}
        direct_meters = self._emit.externs.direct_meters
        for node in ops.walk((self._blocks.egress, self._blocks.deparser)):
            match node:
                case ops.Assign(target) | ops.Hash(target) | ops.ReadRegister(target):
                    targets.append(target)
                case ops.ExecuteMeter(target) | ops.Random(target):
                    targets.append(target)
                case Apply(table) if table in direct_meters:
                    (field,) = (part for part in [self._program.meters[direct_meters[table]].target] if part)
                    targets.append(field)
                case ops.AssignVarbit(target):
                    headers.append(target.header)
                case ops.Truncate():
                    names.add("truncated_to")
                case ops.Assert():
                    names.add("failed")
                case ops.SetValidity(header) | ops.CopyHeader(header):
                    headers.append(header)
                case ops.ShiftStack(stack) | ops.CopyStack(stack):
                    headers += [header for element in self._program.stacks[stack] for header in element]
                    names.add(self._emit.stack_variables[stack])
        names.update(name for target in targets for name in self._storage.names(target))
        for header in {other for name in headers for other in (name, *self._program.unions.get(name, ()))}:
            if not self._program.headers[header].metadata:
                names.add(self._emit.validity_variables[header])
            if self._program.headers[header].varbit:
                names.add(self._emit.varbit_bits(header))
            names.update(chunk.name for chunk in self._storage.chunks[header])
        return frozenset(names)

    def _send(self) -> None:
        """Update checksums, run the deparser, write the packet to the output, and send it."""
        emit = self._emit
        for item in self._program.checksums:
            if item.update:
                with emit.block(self._checksum_head(item)):
                    checksum(emit, item)
                    emit.line(f"{emit.place(item.target)} = folded")
        self._statements.block(self._blocks.deparser)
        asserts = any(isinstance(node, ops.Assert) for node in self._blocks.deparser)
        with emit.block(f"if not {emit.name('failed')}:") if asserts else nullcontext():
            self._write_packet()

    def _write_packet(self) -> None:
        """Write headers and payload to the output."""
        emit = self._emit
        emit.line("to = sent * out_stride")
        for header in self._program.deparser:
            deparse(emit, header)
        emit.line(
            "copy(out, to, data, base + parsed, remaining)", "sent_size = to + remaining - sent * out_stride"
        )
        if self._uses(ops.Truncate):
            limit = emit.name("truncated_to")
            emit.nested(f"if sent_size > {limit}:", f"sent_size = {limit}")
        self._write_departure()

    def _write_departure(self) -> None:
        emit = self._emit
        emit.line("out_length[sent] = sent_size", "out_port[sent] = egress_port")
        if self._queued:
            emit.line(
                "out_leave[sent] = schedule_departure(queues, egress_port, now, number(out_length[sent]))"
            )
        emit.line("sent = sent + 1")

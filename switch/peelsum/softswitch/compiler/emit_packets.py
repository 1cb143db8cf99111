"""Writes code that extracts, validates, checksums and deparses headers.

In generated code, the packet starts at byte `base` of `data`; `off` bytes are parsed and `left` bytes remain.
"""

from __future__ import annotations

from collections.abc import Sequence

from peelsum.softswitch.compiler.emit_loads import SIZES, load_bits
from peelsum.softswitch.compiler.emitter import CURRENT_SIZE, Emitter
from peelsum.softswitch.compiler.layout import limbs, words_of
from peelsum.softswitch.compiler.storage import Array, Chunk, Variable
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.model import Checksum
from peelsum.softswitch.program.operations import FieldRef

# --- parsing --------------------------------------------------------------------------------------


def stop_parser(emit: Emitter, test: str, error: str) -> None:
    """End the parser if `test` holds. `error` is a name from P4's core library, or the text of a number."""
    with emit.block(f"if {test}:"):
        known = emit.program.errors.get(error)
        emit.line(f"parser_error = {emit.constant(known) if known is not None else error}")
        emit.line("break")


def extract(emit: Emitter, header: str) -> None:
    """Extract a header from the packet."""
    size = emit.constant(emit.program.headers[header].bits // 8)
    stop_parser(emit, f"left < {size}", "PacketTooShort")
    emit.line("at = base + off")
    for chunk in emit.storage.chunks[header]:
        if isinstance(chunk, Variable):
            emit.line(f"{emit.name(chunk.name)} = {load_bits(emit.constant, 'at', chunk.offset, chunk.bits)}")
        else:
            with emit.block(f"for k in range({emit.constant(chunk.count)}):"):
                emit.line(
                    f"{emit.name(chunk.name)}[k] = load{chunk.bits}(data, {_element(emit, 'at', chunk)})"
                )
    emit.line(f"{emit.validity(header)} = True")
    emit.line(f"off = off + {size}")
    emit.line(f"left = left - {size}")


def _element(emit: Emitter, base: str, array: Array) -> str:
    return f"{base} + {emit.constant(array.offset // 8)} + k * {emit.constant(array.bits // 8)}"


# --- validity -------------------------------------------------------------------------------------


def clear_chunks(emit: Emitter, chunks: Sequence[Chunk]) -> None:
    """Set the fields in `chunks` to 0."""
    zero = emit.constant(0)
    for chunk in chunks:
        if isinstance(chunk, Variable):
            emit.line(f"{emit.name(chunk.name)} = {zero}")
        else:
            with emit.block(f"for k in range({emit.constant(chunk.count)}):"):
                emit.line(f"{emit.name(chunk.name)}[k] = {zero}")


def add_header(emit: Emitter, header: str) -> None:
    """Make a header valid; its fields become 0 if it was invalid."""
    with emit.block(f"if not {emit.validity(header)}:"):
        clear_chunks(emit, emit.storage.chunks[header])
        emit.line(f"{emit.validity(header)} = True")
        _resize(emit, "+", header)


def remove_header(emit: Emitter, header: str) -> None:
    """Make a header invalid."""
    with emit.block(f"if {emit.validity(header)}:"):
        emit.line(f"{emit.validity(header)} = False")
        _resize(emit, "-", header)


def _resize(emit: Emitter, sign: str, header: str) -> None:
    size = emit.name(CURRENT_SIZE)
    emit.line(f"{size} = {size} {sign} {emit.constant(emit.program.headers[header].bits // 8)}")


def copy_header(emit: Emitter, target: str, source: str) -> None:
    """Copy a header, including its validity, from another of its type."""
    kinds = [emit.program.headers[name].type_name for name in (target, source)]
    if kinds[0] != kinds[1]:
        raise UnsupportedConstruct(
            f"header {target}: set from {source}, which is of another type; compile again"
        )
    with emit.block(f"if {emit.validity(source)}:"):
        copy_fields(emit, target, source)
    emit.line(f"{emit.validity(target)} = {emit.validity(source)}")


def copy_fields(emit: Emitter, target: str, source: str) -> None:
    """Copy a header's fields from another of its type."""
    for to, chunk in zip(emit.storage.chunks[target], emit.storage.chunks[source], strict=True):
        if isinstance(chunk, Variable):
            emit.line(f"{emit.name(to.name)} = {emit.name(chunk.name)}")
        else:
            with emit.block(f"for k in range({emit.constant(chunk.count)}):"):
                emit.line(f"{emit.name(to.name)}[k] = {emit.name(chunk.name)}[k]")


# --- deparsing ------------------------------------------------------------------------------------


def deparse(emit: Emitter, header: str) -> None:
    """Write a header to the outgoing packet if it is valid, and move `to` past it."""
    with emit.block(f"if {emit.validity(header)}:"):
        group: list[Variable] = []
        for chunk in emit.storage.chunks[header]:
            if isinstance(chunk, Array):
                with emit.block(f"for k in range({emit.constant(chunk.count)}):"):
                    place = _element(emit, "to", chunk)
                    emit.line(f"store{chunk.bits}(out, {place}, {emit.name(chunk.name)}[k])")
                continue
            group.append(chunk)
            if (chunk.offset + chunk.bits) % 8 == 0:
                _store_group(emit, group)
                group = []
        emit.line(f"to = to + {emit.constant(emit.program.headers[header].bits // 8)}")


def _store_group(emit: Emitter, group: Sequence[Variable]) -> None:
    """Store fields that together make up whole bytes."""
    end = group[-1].offset + group[-1].bits
    if end - group[0].offset > 64:
        _store_bytewise(emit, group)
        return
    texts = []
    for part in group:
        shift = end - part.offset - part.bits
        name = emit.name(part.name)
        texts.append(f"({name} << {emit.constant(shift)})" if shift else name)
    text, first, count = " | ".join(texts), group[0].offset // 8, (end - group[0].offset) // 8
    if len(texts) > 1 and count not in SIZES:
        emit.line(f"word = {text}")
        text = "word"
    for size in SIZES:
        while count >= size:
            after = 8 * (count - size)
            shifted = f"({text}) >> {emit.constant(after)}" if after else text
            emit.line(f"store{8 * size}(out, to + {emit.constant(first)}, {shifted})")
            first, count = first + size, count - size


def _store_bytewise(emit: Emitter, group: Sequence[Variable]) -> None:
    for byte in range(group[0].offset // 8, (group[-1].offset + group[-1].bits) // 8):
        texts = []
        for part in group:
            shift = 8 * (byte + 1) - part.offset - part.bits  # of the field's low end from the byte's
            if -part.bits < shift < 8:
                word = f"{emit.name(part.name)} {'<<' if shift >= 0 else '>>'} {emit.constant(abs(shift))}"
                texts.append(f"({word})")
        emit.line(f"store8(out, to + {emit.constant(byte)}, ({' | '.join(texts)}) & {emit.constant(255)})")


# --- checksums ------------------------------------------------------------------------------------


def checksum(emit: Emitter, item: Checksum) -> None:
    """Compute the checksum of an item's inputs into `folded`, without inputs of invalid headers."""
    emit.line(f"total = {emit.constant(0)}")
    offset = 0
    position = 0
    while position < len(item.inputs):
        header, end = _same_header(item, position)
        bits = sum(part[2] for part in item.inputs[position:end])
        if header is None or emit.program.headers[header].metadata:
            offset = _add_inputs(emit, item, position, end, offset)
        else:
            if bits % 16 and end < len(item.inputs):
                raise UnsupportedConstruct(
                    f"checksum {item.name}: {bits} bits of {header} before other inputs; "
                    "make them a multiple of 16"
                )
            with emit.block(f"if {emit.validity(header)}:"):
                offset = _add_inputs(emit, item, position, end, offset)
        position = end
    if offset % 8:
        raise UnsupportedConstruct(
            f"checksum {item.name}: over {offset} bits, which are not whole bytes; pad them"
        )
    half, whole = emit.constant(16), emit.constant(0xFFFF)
    for _ in range(3):
        emit.line(f"total = (total & {whole}) + (total >> {half})")
    emit.line(f"folded = total ^ {whole}")


def _same_header(item: Checksum, start: int) -> tuple[str | None, int]:
    """Return the header of input `start` and the index of the next input of another header."""

    def owner(position: int) -> str | None:
        ref = item.inputs[position][0]
        return None if ref is None else ref.header

    end = start + 1
    while end < len(item.inputs) and owner(end) == owner(start):
        end += 1
    return owner(start), end


def _add_inputs(emit: Emitter, item: Checksum, start: int, end: int, offset: int) -> int:
    for ref, value, bits in item.inputs[start:end]:
        for text, width in limbs_of(emit, ref, value, bits):
            _add_limb(emit, text, width, offset)
            offset += width
    return offset


def limbs_of(emit: Emitter, ref: FieldRef | None, value: int, bits: int) -> list[tuple[str, int]]:
    """Return text and width of an input's parts of at most 64 bits, most significant first."""
    if ref is None:
        count = words_of(bits)
        widths = [bits - 64 * (count - 1), *[64] * (count - 1)]
        return list(zip(map(emit.constant, limbs(value, bits)), widths, strict=True))
    if bits <= 64:
        return [(emit.place(ref), bits)]
    return [(emit.name(part.name), part.bits) for part in emit.storage.variables(ref)]


def _add_limb(emit: Emitter, text: str, bits: int, offset: int) -> None:
    """Add a value, which starts `offset` bits into the input, to `total`, 16 bits at a time."""
    end = offset + bits
    for word in range(offset // 16, -(-end // 16)):
        shift = 16 * (word + 1) - end  # of the value's low end from the word's
        part = f"({text} << {emit.constant(shift)})" if shift > 0 else text
        part = f"({text} >> {emit.constant(-shift)})" if shift < 0 else part
        emit.line(f"total = total + ({part} & {emit.constant(0xFFFF)})")

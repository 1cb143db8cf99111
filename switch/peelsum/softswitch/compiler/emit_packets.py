"""Writes code that extracts, validates, moves and deparses headers, and sums fields.

In generated code, the packet starts at byte `base` of `data`. Of its bytes, `parsed` are parsed and
`remaining` are not. A stack's elements are ordinary headers, and one variable per stack counts the filled
ones. Where all paths of the parser have filled the same number, `next` is known when code is generated.
Elsewhere, e.g. in a loop, the code tests the variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from peelsum.softswitch.compiler.emitter import CURRENT_SIZE, SIZES, Emitter
from peelsum.softswitch.compiler.layout import Array, Chunk, Variable, limbs, words_of
from peelsum.softswitch.errors import NotCompilable, UnsupportedConstruct
from peelsum.softswitch.program import operations as ops
from peelsum.softswitch.program.model import Advance, Checksum, Extract, ExtractNext, Require, Verify
from peelsum.softswitch.program.operations import HASHES, INTERPRETED_HASHES, Expr, FieldRef, Inputs


def statement(emit: Emitter, node: object) -> None:
    """Write a statement of the parser, or one that changes headers as a whole."""
    expressions = emit.expressions
    match node:
        case Extract(header, varbit_bits):
            extract(emit, header, varbit_bits)
        case ExtractNext(stack, member, varbit_bits):
            extract_next(emit, stack, member, varbit_bits)
        case Require(bits):
            stop_parser(emit, f"remaining < {-(-bits // 8)}", "PacketTooShort")
        case Advance(bits):
            advance(emit, expressions.exact(bits, "number of bits to advance by").text)
        case Verify(condition, error):
            stop_parser(emit, f"not {expressions.condition(condition)}", expressions.truncated(error, 32))
        case ops.SetValidity(header, valid):
            set_validity(emit, header, valid)
        case ops.CopyHeader(target, source):
            copy_header(emit, target, source)
        case ops.CopyStack(target, source):
            copy_stack(emit, target, source)
        case ops.ShiftStack(stack, places):
            shift_stack(emit, stack, places)
        case ops.AssignVarbit(target_field, source_field):
            emit.line(f"{emit.place(target_field)} = {emit.place(source_field)}")
            emit.line(f"{emit.varbit_bits(target_field.header)} = {emit.varbit_bits(source_field.header)}")


def stop_parser(emit: Emitter, test: str, error: str) -> None:
    """End the parser if `test` holds. `error` is a name from P4's core library, or the text of a number."""
    emit.nested(f"if {test}:", f"parser_error = {emit.program.errors.get(error, error)}", "break")


def advance(emit: Emitter, bits: str) -> None:
    """Skip a number of bits of the packet. The parser stops unless they are whole bytes of it."""
    emit.line(f"skipped = {bits}")
    stop_parser(emit, "skipped % 8 != 0", "ParserInvalidArgument")
    stop_parser(emit, "remaining < skipped // 8", "PacketTooShort")
    emit.line("parsed = parsed + skipped // 8", "remaining = remaining - skipped // 8")


def extract(emit: Emitter, header: str, varbit_bits: Expr | None) -> None:
    """Extract a header from the packet; its varbit, if any, has as many bits as an expression says."""
    if varbit_bits is not None:
        _extract_with_varbit(emit, header, varbit_bits)
        return
    size = emit.program.headers[header].bits // 8
    stop_parser(emit, f"remaining < {size}", "PacketTooShort")
    emit.line("at = base + parsed")
    for chunk in emit.storage.chunks[header]:
        if isinstance(chunk, Variable):
            emit.line(f"{emit.name(chunk.name)} = {emit.load_bits('at', chunk.offset, chunk.bits)}")
        else:
            load = f"load{chunk.bits}(data, at + {chunk.offset // 8} + k * {chunk.bits // 8})"
            emit.nested(f"for k in range({chunk.count}):", f"{emit.name(chunk.name)}[k] = {load}")
    _set_valid(emit, header)
    emit.line(f"parsed = parsed + {size}", f"remaining = remaining - {size}")


def _extract_with_varbit(emit: Emitter, header: str, varbit_bits: Expr) -> None:
    """Extract a header with a varbit, in exact code: load it as one number, and split that into fields."""
    declared, width = emit.program.headers[header], emit.varbit_bits(header)
    bits = emit.expressions.exact(varbit_bits, f"width of the varbit of {header}").text
    emit.line(f"bits = {bits}", f"header_size = {declared.bits // 8} + bits // 8")
    stop_parser(emit, "bits % 8 != 0", "ParserInvalidArgument")
    stop_parser(emit, "remaining < header_size", "PacketTooShort")
    most_bits = 0 if declared.varbit is None else declared.varbit.bits
    stop_parser(emit, f"bits > {most_bits}", "HeaderTooShort")
    emit.line(
        f"{width} = bits",
        "word = load_number(data, base + parsed, header_size)",
        "field_end = 8 * header_size",
    )
    for ref, field_bits in fields_of(emit, header):
        emit.line(
            f"field_end = field_end - {field_bits}",
            f"{emit.place(ref)} = (word >> field_end) & ((1 << {field_bits}) - 1)",
        )
    _set_valid(emit, header)
    emit.line("parsed = parsed + header_size", "remaining = remaining - header_size")


def fields_of(emit: Emitter, header: str) -> Iterator[tuple[FieldRef, str]]:
    """Yield a header's fields, with the text of their widths."""
    for field in emit.program.headers[header].fields:
        yield FieldRef(header, field.name), emit.varbit_bits(header) if field.varbit else str(field.bits)


def _set_valid(emit: Emitter, header: str) -> None:
    """Mark a header as valid, and the other headers of its union as invalid."""
    emit.line(f"{emit.validity(header)} = True")
    emit.line(*(f"{emit.validity(other)} = False" for other in emit.program.unions.get(header, ())))


def clear_chunks(emit: Emitter, chunks: Sequence[Chunk]) -> None:
    """Set the fields in `chunks` to 0."""
    for chunk in chunks:
        if isinstance(chunk, Variable):
            emit.line(f"{emit.name(chunk.name)} = 0")
        else:
            emit.nested(f"for k in range({chunk.count}):", f"{emit.name(chunk.name)}[k] = 0")


def set_validity(emit: Emitter, header: str, valid: bool) -> None:
    """Make a header valid or invalid; the fields of one that becomes valid are 0."""
    validity, size = emit.validity(header), emit.name(CURRENT_SIZE)
    with emit.block(f"if not {validity}:" if valid else f"if {validity}:"):
        if valid:
            clear_chunks(emit, emit.storage.chunks[header])
            if emit.program.headers[header].varbit:
                emit.line(f"{emit.varbit_bits(header)} = 0")
        emit.line(f"{size} = {size} {'+' if valid else '-'} {_header_bytes(emit, header)}")
        if valid:
            _set_valid(emit, header)
        else:
            emit.line(f"{validity} = False")


def _header_bytes(emit: Emitter, header: str) -> str:
    """Return the text of a valid header's length in bytes."""
    declared = emit.program.headers[header]
    return f"{declared.bits // 8}" + (f" + {emit.varbit_bits(header)} // 8" if declared.varbit else "")


def copy_header(emit: Emitter, target: str, source: str) -> None:
    """Copy a header, including its validity, from another of its type."""
    kinds = [emit.program.headers[name].type_name for name in (target, source)]
    if kinds[0] != kinds[1]:
        raise UnsupportedConstruct(
            f"header {target}: set from {source}, which is of another type; compile again"
        )
    with emit.block(f"if {emit.validity(source)}:"):
        copy_fields(emit, target, source)
        emit.line(*(f"{emit.validity(other)} = False" for other in emit.program.unions.get(target, ())))
    if not emit.program.headers[target].metadata:
        emit.line(f"{emit.validity(target)} = {emit.validity(source)}")


def copy_fields(emit: Emitter, target: str, source: str) -> None:
    """Copy a header's fields from another of its type."""
    if emit.program.headers[source].varbit:
        emit.line(f"{emit.varbit_bits(target)} = {emit.varbit_bits(source)}")
    for target_chunk, chunk in zip(emit.storage.chunks[target], emit.storage.chunks[source], strict=True):
        if isinstance(chunk, Variable):
            emit.line(f"{emit.name(target_chunk.name)} = {emit.name(chunk.name)}")
        else:
            emit.nested(
                f"for k in range({chunk.count}):",
                f"{emit.name(target_chunk.name)}[k] = {emit.name(chunk.name)}[k]",
            )


def extract_next(emit: Emitter, stack: str, member: int, varbit_bits: Expr | None) -> None:
    """Extract a stack's next element from the packet; of unions, the header in place `member`."""
    elements = [element[member] for element in emit.program.stacks[stack]]
    count, filled = emit.stack_count(stack), emit.filled.get(stack)
    if filled is not None and filled < len(elements):
        extract(emit, elements[filled], varbit_bits)
        emit.line(f"{count} = {filled + 1}")
        emit.filled[stack] = filled + 1
        return
    stop_parser(emit, f"{count} == {len(elements)}", "StackOutOfBounds")
    for number, header in enumerate(elements):
        with emit.block(f"{'elif' if number else 'if'} {count} == {number}:"):
            extract(emit, header, varbit_bits)
    emit.line(f"{count} = {count} + 1")


def shift_stack(emit: Emitter, stack: str, places: int) -> None:
    """Shift a stack's elements up, or down if `places` is negative."""
    emit.filled.pop(stack, None)
    count, size = emit.stack_count(stack), len(emit.program.stacks[stack])
    targets = range(size - 1, places - 1, -1) if places > 0 else range(max(size + places, 0))
    for elements in zip(*emit.program.stacks[stack], strict=True):
        for target in targets:
            copy_fields(emit, elements[target], elements[target - places])
            emit.line(f"{emit.validity(elements[target])} = {emit.validity(elements[target - places])}")
        for header in elements[:places] if places > 0 else elements[len(targets) :]:
            emit.line(f"{emit.validity(header)} = False")
    if places > 0:
        emit.line(f"{count} = {count} + {places} if {count} + {places} < {size} else {size}")
    else:
        emit.line(f"{count} = {count} - {-places} if {count} > {-places} else 0")


def copy_stack(emit: Emitter, target: str, source: str) -> None:
    """Copy a stack from another of its type."""
    emit.filled.pop(target, None)
    for pair in zip(emit.program.stacks[target], emit.program.stacks[source], strict=True):
        for target_header, header in zip(*pair, strict=True):
            copy_header(emit, target_header, header)
    emit.line(f"{emit.stack_count(target)} = {emit.stack_count(source)}")


def deparse(emit: Emitter, header: str) -> None:
    """Write a header to the outgoing packet if it is valid, and move `to` past it."""
    with emit.block(f"if {emit.validity(header)}:"):
        if emit.program.headers[header].varbit:
            emit.line("word = 0")
            for ref, bits in fields_of(emit, header):
                emit.line(f"word = (word << {bits}) | {emit.place(ref)}")
            emit.line(f"header_size = {_header_bytes(emit, header)}")
            emit.line("store_number(out, to, header_size, word)", "to = to + header_size")
            return
        group: list[Variable] = []
        for chunk in emit.storage.chunks[header]:
            if isinstance(chunk, Array):
                place, value = (
                    f"to + {chunk.offset // 8} + k * {chunk.bits // 8}",
                    f"{emit.name(chunk.name)}[k]",
                )
                emit.nested(f"for k in range({chunk.count}):", f"store{chunk.bits}(out, {place}, {value})")
                continue
            group.append(chunk)
            if (chunk.offset + chunk.bits) % 8 == 0:
                _store_group(emit, group)
                group = []
        emit.line(f"to = to + {emit.program.headers[header].bits // 8}")


def _store_group(emit: Emitter, group: Sequence[Variable]) -> None:
    """Store fields that together make up whole bytes."""
    end = group[-1].offset + group[-1].bits
    if end - group[0].offset > 64 and not emit.exact:
        pieces = [(emit.name(variable.name), variable.bits) for variable in group]
        for byte, text in enumerate(_bytes_of(pieces), group[0].offset // 8):
            emit.line(f"store8(out, to + {byte}, {text})")
        return
    texts = []
    for variable in group:
        field_shift = end - variable.offset - variable.bits
        name = emit.name(variable.name)
        texts.append(f"({name} << {field_shift})" if field_shift else name)
    text, first, count = " | ".join(texts), group[0].offset // 8, (end - group[0].offset) // 8
    if count > SIZES[0]:
        emit.line(f"store_number(out, to + {first}, {count}, {text})")
        return
    if len(texts) > 1 and count not in SIZES:
        emit.line(f"word = {text}")
        text = "word"
    for size in SIZES:
        while count >= size:
            shift = 8 * (count - size)
            shifted = f"({text}) >> {shift}" if shift else text
            emit.line(f"store{8 * size}(out, to + {first}, {shifted})")
            first, count = first + size, count - size


def _bytes_of(pieces: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield the text of each byte of fields side by side, (text, bits) each; the last is padded."""
    total = sum(width for _, width in pieces)
    for byte in range(-(-total // 8)):
        texts, end = [], 0
        for text, width in pieces:
            end += width
            shift = 8 * (byte + 1) - end  # of the field's low end from the byte's
            if -width < shift < 8:
                texts.append(f"({text} {'<<' if shift >= 0 else '>>'} {abs(shift)})")
        yield f"({' | '.join(texts)}) & 255"


def hash_of(
    emit: Emitter, algorithm: str, inputs: Inputs, what: str, payload: bool = False, counter: int = 0
) -> str:
    """Write code that fills `hashed` with inputs of valid headers; return the text of their hash.

    counter: which of the counters a hash that counts takes.
    """
    if emit.exact:
        _gather_exact(emit, inputs)
    else:
        _gather(emit, inputs, what)
    if payload:
        emit.line("copy(hashed, count, data, base + parsed, remaining)", "count = count + remaining")
    if algorithm in INTERPRETED_HASHES and not emit.exact:
        raise NotCompilable(f"hash {algorithm}")
    return f"({HASHES[algorithm].format(counter=emit.externs.counters + counter)})"


def _gather(emit: Emitter, inputs: Inputs, what: str) -> None:
    """Write the inputs to `hashed`, and their number of bytes to `count`."""
    emit.line("count = 0")
    position = 0
    while position < len(inputs):
        header, end = _same_header_run(emit, inputs, position)
        pieces = [piece for item in inputs[position:end] for piece in _limbs_of(emit, *item)]
        if sum(width for _, width in pieces) % 8 and end < len(inputs):
            raise NotCompilable(f"{what}: fields of {header or 'metadata'} before others are not whole bytes")
        with nullcontext() if header is None else emit.block(f"if {emit.validity(header)}:"):
            texts = list(_bytes_of(pieces))
            emit.line(*(f"hashed[count + {byte}] = {text}" for byte, text in enumerate(texts)))
            emit.line(f"count = count + {len(texts)}")
        position = end


def _gather_exact(emit: Emitter, inputs: Inputs) -> None:
    """Write the inputs to `hashed` as `_gather` does, of any widths."""
    emit.line("word = 0", "bits = 0")
    for ref, value, width in inputs:
        text, bits = str(value) if ref is None else emit.place(ref), str(width)
        if ref is not None and emit.declared(ref).varbit:
            bits = emit.varbit_bits(ref.header)
        with nullcontext() if ref is None else emit.block(f"if {emit.validity(ref.header)}:"):
            emit.line(f"word = (word << {bits}) | {text}", f"bits = bits + {bits}")
    emit.line("count = (bits + 7) // 8", "word = word << (8 * count - bits)")
    emit.line("store_number(hashed, 0, count, word)")


def _same_header_run(emit: Emitter, inputs: Inputs, start: int) -> tuple[str | None, int]:
    """Return the packet header of input `start`, or None, and the end of the inputs with that header."""

    def header_of(position: int) -> str | None:
        ref = inputs[position][0]
        return None if ref is None or emit.program.headers[ref.header].metadata else ref.header

    end = start + 1
    while end < len(inputs) and header_of(end) == header_of(start):
        end += 1
    return header_of(start), end


def words_of_checksum(emit: Emitter, item: Checksum) -> list[tuple[str | None, Inputs]] | None:
    """Return a checksum's inputs by header, if they can be summed in words of 16 bits; else None.

    Where the inputs of a header are not whole words, it depends on the header where the next ones begin.
    """
    runs, position, widths = [], 0, []
    while position < len(item.inputs):
        header, end = _same_header_run(emit, item.inputs, position)
        runs.append((header, item.inputs[position:end]))
        widths.append(sum(bits for _, _, bits in item.inputs[position:end]))
        position = end
    whole = not any(width % 16 for width in widths[:-1]) and sum(widths) % 8 == 0
    is_sum = item.algorithm in ("csum16", "cksum16") and not item.payload and not emit.exact
    return runs if whole and is_sum else None


def checksum(emit: Emitter, item: Checksum) -> None:
    """Compute the checksum of an item's inputs into `folded`, without inputs of invalid headers."""
    runs = words_of_checksum(emit, item)
    if runs is None:
        text = hash_of(emit, item.algorithm, item.inputs, f"checksum {item.name}", item.payload)
        emit.line(f"folded = {text} & {(1 << min(64, emit.bits(item.target))) - 1}")
        return
    emit.line("total = 0")
    for header, inputs in runs:
        with nullcontext() if header is None else emit.block(f"if {emit.validity(header)}:"):
            _add_inputs(emit, inputs)
    for _ in range(3):
        emit.line("total = (total & 0xFFFF) + (total >> 16)")
    emit.line("folded = total ^ 0xFFFF")


def _add_inputs(emit: Emitter, inputs: Inputs) -> None:
    """Add inputs to `total`, 16 bits at a time."""
    offset = 0
    for item in inputs:
        for text, width in _limbs_of(emit, *item):
            word, offset = offset // 16, offset + width
            for position in range(word, -(-offset // 16)):
                shift = 16 * (position + 1) - offset  # of the value's low end from the word's
                shifted = f"({text} {'<<' if shift > 0 else '>>'} {abs(shift)})" if shift else text
                emit.line(f"total = total + ({shifted} & 0xFFFF)")


def _limbs_of(emit: Emitter, ref: FieldRef | None, value: int, bits: int) -> list[tuple[str, int]]:
    """Return text and width of an input's parts of at most 64 bits, most significant first."""
    if ref is None:
        count = words_of(bits)
        widths = [bits - 64 * (count - 1), *[64] * (count - 1)]
        return list(zip(map(str, limbs(value, bits)), widths, strict=True))
    if bits <= 64:
        return [(emit.place(ref), bits)]
    return [(emit.name(variable.name), variable.bits) for variable in emit.storage.variables(ref)]

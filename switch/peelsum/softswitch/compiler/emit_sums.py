"""Writes code that sums fields: checksums of packets, and hashes.

A hash fills the array `hashed` with the fields' bytes and calls a hash function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peelsum.softswitch.compiler.emitter import Emitter
from peelsum.softswitch.compiler.layout import limbs, words_of
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.model import Checksum
from peelsum.softswitch.program.operations import FieldRef, Hash

#: Most headers of a checksum whose inputs are not a multiple of 16 bits: each doubles the generated code.
_MOST_UNALIGNED = 4


def hash_fields(emit: Emitter, statement: Hash, bits: int) -> str:
    """Write code that fills `hashed` and return the text of the hash, truncated to `bits`."""
    emit.line("count = 0")
    position = 0
    while position < len(statement.inputs):
        header, end = _same_header_run(emit, statement, position)
        pieces = [piece for item in statement.inputs[position:end] for piece in _limbs_of(emit, *item)]
        if sum(width for _, width in pieces) % 8 and end < len(statement.inputs):
            raise UnsupportedConstruct(
                f"hash {statement.algorithm}: fields of {header or 'metadata'} before others "
                "are not whole bytes; pad them"
            )
        if header is None:
            _append_bytes(emit, pieces)
        else:
            with emit.block(f"if {emit.validity(header)}:"):
                _append_bytes(emit, pieces)
        position = end
    base = emit.expressions.exact(statement.base, "base of a hash").text
    size = emit.expressions.exact(statement.size, "size of a hash").text
    emit.line(f"size_of = {size}")
    text = f"hash_{statement.algorithm}(hashed, count) % (size_of if size_of != 0 else 1)"
    return f"({text} + {base}) & {(1 << bits) - 1}"


def hashed_bytes(statement: Hash) -> int:
    """Return the most bytes that a hash can cover."""
    return sum(-(-bits // 8) for _, _, bits in statement.inputs)


def _same_header_run(emit: Emitter, item: Hash | Checksum, start: int) -> tuple[str | None, int]:
    """Return the packet header of input `start`, or None, and the end of the inputs with that header."""

    def header_of(position: int) -> str | None:
        ref = item.inputs[position][0]
        return None if ref is None or emit.program.headers[ref.header].metadata else ref.header

    end = start + 1
    while end < len(item.inputs) and header_of(end) == header_of(start):
        end += 1
    return header_of(start), end


def _append_bytes(emit: Emitter, pieces: Sequence[tuple[str, int]]) -> None:
    """Append fields side by side to `hashed`; the last byte is padded with zeros."""
    total = sum(width for _, width in pieces)
    for byte in range(-(-total // 8)):
        texts, end = [], 0
        for text, width in pieces:
            end += width
            shift = 8 * (byte + 1) - end  # of the field's low end from the byte's
            if -width < shift < 8:
                texts.append(f"({text} {'<<' if shift >= 0 else '>>'} {abs(shift)})")
        emit.line(f"hashed[count + {byte}] = ({' | '.join(texts)}) & 255")
    emit.line(f"count = count + {-(-total // 8)}")


# --- checksums ------------------------------------------------------------------------------------


def checksum(emit: Emitter, item: Checksum) -> None:
    """Compute the checksum of an item's inputs into `folded`, without inputs of invalid headers."""
    emit.line("total = 0")
    _add_inputs_from(emit, item, 0, 0, {})
    for _ in range(3):
        emit.line("total = (total & 0xFFFF) + (total >> 16)")
    emit.line("folded = total ^ 0xFFFF")


def _add_inputs_from(
    emit: Emitter, item: Checksum, position: int, offset: int, validity: Mapping[str, bool]
) -> None:
    """Add the inputs from index `position` on to `total`; the inputs before them have `offset` bits.

    The alignment of inputs depends on which headers before them are valid. So if a header's inputs are not a
    multiple of 16 bits, the code after them is written twice, for the header valid and invalid. `validity`
    has the headers for which this is decided.
    """
    while position < len(item.inputs):
        header, end = _same_header_run(emit, item, position)
        if header is None or validity.get(header):
            offset = _add_inputs(emit, item, position, end, offset)
        elif header not in validity:
            bits = sum(part[2] for part in item.inputs[position:end])
            if bits % 16 and end < len(item.inputs):
                if len(validity) == _MOST_UNALIGNED:
                    raise UnsupportedConstruct(
                        f"checksum {item.name}: inputs of more than {_MOST_UNALIGNED} headers that are not a "
                        "multiple of 16 bits; pad some of them"
                    )
                with emit.block(f"if {emit.validity(header)}:"):
                    end_offset = _add_inputs(emit, item, position, end, offset)
                    _add_inputs_from(emit, item, end, end_offset, {**validity, header: True})
                with emit.block("else:"):
                    _add_inputs_from(emit, item, end, offset, {**validity, header: False})
                return
            with emit.block(f"if {emit.validity(header)}:"):
                offset = _add_inputs(emit, item, position, end, offset)
        position = end
    if offset % 8:
        raise UnsupportedConstruct(
            f"checksum {item.name}: over {offset} bits, which are not whole bytes; pad them"
        )


def _add_inputs(emit: Emitter, item: Checksum, start: int, end: int, offset: int) -> int:
    """Add the inputs from `start` to `end` to `total`; return the offset after them."""
    for ref, value, bits in item.inputs[start:end]:
        for text, width in _limbs_of(emit, ref, value, bits):
            _add_limb(emit, text, width, offset)
            offset += width
    return offset


def _limbs_of(emit: Emitter, ref: FieldRef | None, value: int, bits: int) -> list[tuple[str, int]]:
    """Return text and width of an input's parts of at most 64 bits, most significant first."""
    if ref is None:
        count = words_of(bits)
        widths = [bits - 64 * (count - 1), *[64] * (count - 1)]
        return list(zip(map(str, limbs(value, bits)), widths, strict=True))
    if bits <= 64:
        return [(emit.place(ref), bits)]
    return [(emit.name(variable.name), variable.bits) for variable in emit.storage.variables(ref)]


def _add_limb(emit: Emitter, text: str, bits: int, offset: int) -> None:
    """Add a value to `total`, 16 bits at a time; it starts `offset` bits after the start of the inputs."""
    end = offset + bits
    for word in range(offset // 16, -(-end // 16)):
        shift = 16 * (word + 1) - end  # of the value's low end from the word's
        shifted = f"({text} << {shift})" if shift > 0 else text
        shifted = f"({text} >> {-shift})" if shift < 0 else shifted
        emit.line(f"total = total + ({shifted} & 0xFFFF)")

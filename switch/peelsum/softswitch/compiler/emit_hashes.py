"""Writes code that hashes fields: it fills the array `hashed` with their bytes and calls a hash function."""

from __future__ import annotations

from collections.abc import Sequence

from peelsum.softswitch.compiler.emit_packets import limbs_of
from peelsum.softswitch.compiler.emitter import Emitter
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.operations import Hash


def hash_fields(emit: Emitter, part: Hash, bits: int) -> str:
    """Write code that fills `hashed` and return the text of the hash, truncated to `bits`."""
    emit.line(f"count = {emit.constant(0)}")
    position = 0
    while position < len(part.inputs):
        header, end = _run(emit, part, position)
        pieces = [piece for item in part.inputs[position:end] for piece in limbs_of(emit, *item)]
        if sum(width for _, width in pieces) % 8 and end < len(part.inputs):
            raise UnsupportedConstruct(
                f"hash {part.algorithm}: fields of {header or 'metadata'} before others are not whole bytes; "
                "pad them"
            )
        if header is None:
            _append(emit, pieces)
        else:
            with emit.block(f"if {emit.validity(header)}:"):
                _append(emit, pieces)
        position = end
    base = emit.expressions.exact(part.base, "base of a hash").text
    size = emit.expressions.exact(part.size, "size of a hash").text
    zero, one = emit.constant(0), emit.constant(1)
    emit.line(f"size_of = {size}")
    text = f"hash_{part.algorithm}(hashed, count) % (size_of if size_of != {zero} else {one})"
    return f"({text} + {base}) & {emit.constant((1 << bits) - 1)}"


def hashed_bytes(part: Hash) -> int:
    """Return the most bytes that a hash can cover."""
    return sum(-(-bits // 8) for _, _, bits in part.inputs)


def _run(emit: Emitter, part: Hash, start: int) -> tuple[str | None, int]:
    """Return the packet header of input `start`, or None, and the index of the next input of another one."""

    def owner(position: int) -> str | None:
        ref = part.inputs[position][0]
        return None if ref is None or emit.program.headers[ref.header].metadata else ref.header

    end = start + 1
    while end < len(part.inputs) and owner(end) == owner(start):
        end += 1
    return owner(start), end


def _append(emit: Emitter, pieces: Sequence[tuple[str, int]]) -> None:
    """Append fields side by side to `hashed`; the last byte is padded with zeros."""
    total = sum(width for _, width in pieces)
    for byte in range(-(-total // 8)):
        texts, end = [], 0
        for text, width in pieces:
            end += width
            shift = 8 * (byte + 1) - end  # of the field's low end from the byte's
            if -width < shift < 8:
                texts.append(f"({text} {'<<' if shift >= 0 else '>>'} {emit.constant(abs(shift))})")
        emit.line(f"hashed[count + {emit.constant(byte)}] = ({' | '.join(texts)}) & {emit.constant(255)}")
    emit.line(f"count = count + {emit.constant(-(-total // 8))}")

"""Agree on a scale for each block of a segment's elements, from OR-ed words: one for each block, one beside.

Strategy: the segment's word says where its largest value lies: a bit for `SPAN` exponent fields, and bit
`NON_FINITE_BIT` if some value is not finite. A block's word has bit `level % LEVELS`, where the level of an
exponent field is half of it. So the bits of all workers, read downwards from the upper end of the segment's
span, give the block's largest level, unless it is LEVELS or more below.

A block that is far below its worker's own largest value counts as `DEPTH` octaves below. Only if workers'
largest values differ by more than 2 * LEVELS - `DEPTH` - `SPAN` octaves can a level be read as one that is
LEVELS higher. The scale is then coarser than needed, never too fine.
"""

from __future__ import annotations

from peelsum.codec.fixed_point import NON_FINITE

#: Levels that a block's word tells apart, one for each bit.
LEVELS = 32
#: log2 of the octaves (exponent fields) of a level.
LEVEL_BITS = 1
#: Octaves below a worker's largest value from which on blocks are not told apart.
DEPTH = 40
#: Exponent fields that have the same bit in a segment's word. Bits up to 28 are those of finite values.
SPAN = 9
#: The bit of a segment's word that says that some value is not finite.
NON_FINITE_BIT = 31
#: In place of an exponent field, of a segment that is zero on every worker, and of one that is not finite.
ZERO = -1
LARGEST_FINITE = NON_FINITE - 1

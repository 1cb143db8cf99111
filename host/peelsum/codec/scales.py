"""The words by which workers agree on a scale for each block: one for each segment, and one for each block.

Strategy: workers OR their words. A segment's word says in which range of `SPAN` exponent fields its largest
value lies, by one bit, and has bit `NON_FINITE_BIT` if some value is not finite. A block's word has bit
`level % LEVELS`, where the level of an exponent field is half of it. So the bits of all workers, read
downwards from the upper end of the segment's range, give the block's largest level, unless it is LEVELS or
more below that end.

A block that is far below its worker's largest value counts as `DEPTH` octaves below it. Only if workers'
largest values differ by more than 2 * LEVELS - `DEPTH` - `SPAN` octaves can a level be read as one that is
LEVELS higher. The scale is then coarser than needed, never too fine.
"""

from __future__ import annotations

from peelsum.codec.fixed_point import NON_FINITE

#: Levels that a block's word distinguishes, one for each bit.
LEVELS = 32
#: log2 of the octaves (exponent fields) of a level.
LEVEL_BITS = 1
#: Octaves below a worker's largest value from which on blocks are not distinguished.
DEPTH = 40
#: Exponent fields that have the same bit in a segment's word. Bits up to 28 are those of finite values.
SPAN = 9
#: The bit of a segment's word that says that some value is not finite.
NON_FINITE_BIT = 31
#: In place of the exponent field of a segment that is zero on every worker; see also `NON_FINITE`.
ZERO = -1
LARGEST_FINITE = NON_FINITE - 1

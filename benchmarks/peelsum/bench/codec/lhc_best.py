"""Time LHC's layout at several table sizes and with both indexes, to compare the codec with the fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from peelsum.bench.codec.lhc import LhcLayout
from peelsum.bench.codec.timing import Measured, fastest

#: Cells per non-zero of the paper's table, and of the others that are tried.
PUBLISHED = 2.0
SIZES = (1.5, 3.0, 4.0, 6.0, 8.0)
#: Multiples of the smallest table that recovers everything.
MULTIPLES = (1.0, 1.25, 1.5, 2.0)
#: Number of tables that are measured again after one run of each.
_FINALISTS = 3


class TimedLhc(NamedTuple):
    """A layout and its measurement."""

    layout: LhcLayout
    measured: Measured


def published_lhc(non_zeros: int) -> LhcLayout:
    """Return LHC's layout of the published size, with the published index."""
    return _sized(non_zeros, PUBLISHED)


def lhc_variants(non_zeros: int, smallest: LhcLayout | None) -> list[LhcLayout]:
    """Return the layouts to try: PUBLISHED, SIZES and MULTIPLES of the smallest, each with both indexes."""
    tables = [_sized(non_zeros, cells) for cells in (PUBLISHED, *SIZES)]
    if smallest is not None:
        tables += (replace(smallest, rows=int(smallest.rows * multiple)) for multiple in MULTIPLES)
    return [replace(one, index_bits=bits) for one in dict.fromkeys(tables) for bits in (4, 1)]


def best_lhc(variants: list[LhcLayout], step: Callable[[LhcLayout], Measured], *also: TimedLhc) -> TimedLhc:
    """Return the fastest of the variants, and of those in `also`.

    Each is run once, and the fastest few as often as the codec's forms.
    """
    once = sorted((TimedLhc(one, step(one)) for one in variants), key=_seconds)
    again = [timed_lhc(one.layout, step) for one in once[:_FINALISTS]]
    return min((*once, *again, *also), key=_seconds)


def timed_lhc(layout: LhcLayout, step: Callable[[LhcLayout], Measured]) -> TimedLhc:
    """Return the layout with its fastest run."""
    return TimedLhc(layout, fastest(lambda _: step(layout)))


def _seconds(one: TimedLhc) -> float:
    return one.measured.codec_s


def _sized(non_zeros: int, cells_per_non_zero: float) -> LhcLayout:
    return LhcLayout(max(round(non_zeros * cells_per_non_zero / LhcLayout(1).lanes), 1))

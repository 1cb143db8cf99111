"""The sum of chosen elements by the exact allreduce.

Only this module knows what `Allreduce` takes and returns: arrays that are zero where nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from peelsum import kept_pages
from peelsum.allreduce import Allreduce, TensorResult
from peelsum.compress.compressor import Compressor, Floats
from peelsum.compress.exchange import Unit
from peelsum.compress.memory import Exact
from peelsum.compress.result import CompressedTensor, FlatSum, cut
from peelsum.compress.wire import Wire


def exchange_indexed(
    compressor: Compressor,
    units: Sequence[Unit],
    offered: Mapping[str, Floats],
    shapes: Mapping[str, tuple[int, ...]],
    wire: Wire,
    allreduce: Allreduce,
    *,
    feedback: bool,
) -> list[CompressedTensor]:
    """Return the sums of the elements that `compressor` chooses; of a tensor that is not finite, of all."""
    with wire.timed("encode"):
        whole = kept_pages.zeros(sum(one.size for one in offered.values()), np.float32)
        ends = np.cumsum([one.size for one in offered.values()], dtype=np.int64)
        sparse = dict(zip(shapes, cut(whole, ends), strict=True))
        for unit in units:
            if unit.finite:
                payload, chosen = compressor.compress(unit.tensor, unit.state), unit.state.positions
                assert chosen is not None
                wire.payload_bytes += payload.nbytes + 4 * chosen.size
                bounds = np.cumsum(unit.lengths)
                at = np.searchsorted(chosen, bounds)
                values, positions = cut(payload, at), cut(chosen, at)
                for name, begin, some, own in zip(
                    unit.names, bounds - unit.lengths, values, positions, strict=True
                ):
                    sparse[name][own - begin] = some
        for name in offered.keys() - set(chain.from_iterable(one.names for one in units if one.finite)):
            sparse[name][:] = offered[name]
    result = allreduce.sum(sparse)
    wire.add(result)
    with wire.timed("decode"):
        flat = [_flat(one, feedback=feedback).cut({one.name: shapes[one.name]}) for one in result.tensors]
        return list(chain.from_iterable(flat))


def _flat(result: TensorResult, *, feedback: bool) -> FlatSum:
    """Return what the allreduce tells of a tensor."""
    own, union = Exact.of(np.zeros(0)), result.positions
    if result.fixed is not None:
        numbers = result.quantized_at.astype(np.int64)
        at = np.flatnonzero(numbers)
        positions = at if union is None else union[at]
        own = Exact(positions, numbers[at], result.scales_at(positions).astype(np.int16))
    return FlatSum(
        form=result.form,
        index=result.index,
        values=result.values.reshape(-1),
        finite=result.finite,
        union=np.flatnonzero(result.total_at) if union is None else union,
        own=own.positions,
        sent=own if feedback else None,
        error_bound=result.error_bound,
        words_sent=result.words_sent,
    )

"""The sum of chosen elements by the exact allreduce.

Only this module knows what `Allreduce` takes and returns: arrays that are zero where nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from peelsum import kept_pages
from peelsum.allreduce import Allreduce
from peelsum.allreduce.result import Contribution, TensorTally
from peelsum.compress.compressor import Compressor, Floats
from peelsum.compress.exchange import Unit
from peelsum.compress.memory import Exact
from peelsum.compress.result import CompressedTensor, cut
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
        ends = np.cumsum([0, *(one.size for one in offered.values())], dtype=np.int64)
        begins = dict(zip(offered, ends[:-1].tolist(), strict=True))
        whole = kept_pages.zeros(int(ends[-1]), np.float32)
        sparse = dict(zip(shapes, cut(whole, ends[1:]), strict=True))
        for unit in units:
            if unit.finite:
                payload, chosen = compressor.compress(unit.tensor, unit.state), unit.state.positions
                assert chosen is not None
                wire.payload_bytes += payload.nbytes + 4 * chosen.size
                if len(unit.names) == 1:
                    sparse[unit.names[0]][chosen] = payload
                    continue
                lengths = np.array(unit.lengths, np.int64)
                bounds = lengths.cumsum()
                moved = np.array([begins[name] for name in unit.names], np.int64) - bounds + lengths
                whole[chosen + moved[np.searchsorted(bounds, chosen, side="right")]] = payload
        for name in offered.keys() - set(chain.from_iterable(one.names for one in units if one.finite)):
            sparse[name][:] = offered[name]
    result = allreduce.sum(sparse, in_place=True)
    wire.add(result)
    with wire.timed("decode"):
        told, words = result.tally.tensors(), result.tally.words_sent()
        contributed = result.contributions() if feedback else {}
        return [
            _tensor(name, values.reshape(shapes[name]), told[name], contributed.get(name), words[name])
            for name, values in sparse.items()
        ]


def _tensor(
    name: str, values: Floats, told: TensorTally, contributed: Contribution | None, words: int
) -> CompressedTensor:
    finite, sent = not math.isnan(told.density), None
    if finite and contributed is not None:
        sent = Exact(contributed.positions, contributed.numbers, contributed.scales.astype(np.int16))
    return CompressedTensor(
        name=name,
        form=told.form,
        index=told.index,
        values=values,
        finite=finite,
        sent=sent,
        density=told.density,
        density_worker=told.density_worker,
        error_bound=told.error_bound,
        words_sent=words,
    )

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
from peelsum.compress.collectives import Wire
from peelsum.compress.compressor import Compressor, Floats
from peelsum.compress.exchange import Unit
from peelsum.compress.memory import Exact
from peelsum.compress.result import CompressedTensor


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
        sparse = {name: whole[begin : begin + offered[name].size] for name, begin in begins.items()}
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
        tensors = []
        for name, values in sparse.items():
            one, finite, sent = told[name], not math.isnan(told[name].density), None
            if finite and feedback:
                positions, numbers, scales = contributed[name]
                sent = Exact(positions, numbers, scales.astype(np.int16))
            tensors.append(
                CompressedTensor(
                    name=name,
                    form=one.form,
                    values=values.reshape(shapes[name]),
                    finite=finite,
                    sent=sent,
                    density=one.density,
                    density_worker=one.density_worker,
                    index=one.index,
                    error_bound=one.error_bound,
                    words_sent=words[name],
                )
            )
    return tensors

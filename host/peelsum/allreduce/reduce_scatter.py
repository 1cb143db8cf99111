"""Sum floats exactly over all workers, and give each worker its piece of the sum: a dense step in two rounds.

The first round ORs the scales of blocks for all workers, who all quantize by them. The second sends each
piece's sum to its owner alone.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.errors import InvalidRequestError, PlanMismatchError
from peelsum.allreduce.plan import AGREEMENT_WORDS, agreed, agreement_words
from peelsum.codec import Implementation, device
from peelsum.codec.segments import Segment, Table
from peelsum.summation import Part, PieceSummation

Floats = NDArray[np.float32]


def reduce_scatter(
    summation: PieceSummation,
    values: Floats,
    *,
    average: bool = False,
    implementation: Implementation = "cpu",
) -> Floats:
    """Return this worker's piece of the sum over workers, float32[n], as `Allreduce` would compute it.

    values: float32[workers * n], the workers' pieces end to end, left unchanged. Every piece has scales of
    its own, in blocks of 32. If an element is not finite on some worker, its whole piece becomes NaN.
    average: divide by the number of workers, before the result is rounded.
    Raises InvalidRequestError for another dtype, shape or length, PlanMismatchError if workers' pieces differ
    in length, and what the backend raises.
    """
    workers, mine = summation.workers, summation.worker_id
    size, left = divmod(values.size, workers)
    if values.dtype != np.float32 or values.ndim != 1 or left:
        raise InvalidRequestError(
            f"values: {values.dtype}{list(values.shape)} has no piece of equal length for each of {workers} "
            "workers; pass float32 of one dimension, padded with zeros"
        )
    if not size:
        return np.empty(0, np.float32)
    segments, nothing = device(implementation).segments, np.empty(0, np.uint32)
    table = Table([Segment(size, sparse=False)] * workers)
    codec = segments(table, np.split(values, workers), [None] * workers, workers)
    digest = int.from_bytes(hashlib.blake2b(f"reduce-scatter {size}".encode(), digest_size=8).digest())
    header = np.concatenate([agreement_words(digest), np.zeros(table.scale_words, np.uint32)])
    codec.write_scales(header[AGREEMENT_WORDS:])
    (united,) = summation.sum_words([Part(header, "or")])
    if not agreed(united):
        raise PlanMismatchError(
            f"reduce_scatter: workers have pieces of other lengths than the {size} elements here"
        )
    codec.read_scales(united[AGREEMENT_WORDS:])
    count, _ = codec.place(nothing)
    if not count:
        return codec.read(np.empty(0, np.int32), np.empty(0, np.int32), 1)[mine]
    sent = codec.sent != 0
    numbers = np.zeros((workers, size), np.int32)
    if sent.all():
        codec.write_dense(numbers.reshape(-1))
    else:
        some = np.empty(count, np.int32)
        codec.write_dense(some)
        numbers[sent] = some.reshape(-1, size)
    total = summation.reduce_scatter(numbers.view(np.uint32).reshape(-1)).view(np.int32)
    own = segments(Table([Segment(size, sparse=False)]), [values[mine * size :][:size]], [None], workers)
    blocks = slice(*table.blocks[mine : mine + 2].tolist())
    own.use(codec.fields[mine : mine + 1], codec.scales[blocks])
    count, _ = own.place(nothing)
    return own.read(total[:count], np.empty(0, np.int32), workers if average else 1)[0]

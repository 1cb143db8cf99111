"""Sum floats exactly over all workers, and return to each worker its piece of the sum, in two rounds.

In the first round, workers agree on the scales of blocks, by OR, and all quantize by them. In the second, the
backend sends each piece's sum to its owner alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.errors import InvalidRequestError, PlanMismatchError
from peelsum.allreduce.plan import AGREEMENT_WORDS, agreed, agreement_words, digest_of
from peelsum.codec import Implementation, device
from peelsum.codec.segments import Segment, SegmentTable
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
    workers, worker_id = summation.workers, summation.worker_id
    size, remainder = divmod(values.size, workers)
    if values.dtype != np.float32 or values.ndim != 1 or remainder:
        raise InvalidRequestError(
            f"values: {values.dtype}{list(values.shape)} has no piece of equal length for each of {workers} "
            "workers; pass float32 of one dimension, padded with zeros"
        )
    if not size:
        return np.empty(0, np.float32)
    segments, no_words = device(implementation).segments, np.empty(0, np.uint32)
    table = SegmentTable([Segment(size, sparse=False)] * workers)
    codec = segments(table, np.split(values, workers), [None] * workers, workers)
    agreement = agreement_words(digest_of(f"reduce-scatter {size}"))
    header = np.concatenate([agreement, np.zeros(table.scale_words, np.uint32)])
    codec.write_scales(header[AGREEMENT_WORDS:])
    (united,) = summation.sum_words([Part(header, "or")])
    if not agreed(united):
        raise PlanMismatchError(
            f"reduce_scatter: workers have pieces of other lengths than the {size} elements here"
        )
    codec.read_scales(united[AGREEMENT_WORDS:])
    count, _ = codec.set_candidates(no_words)
    if not count:
        return codec.decode(np.empty(0, np.int32), np.empty(0, np.int32), 1)[worker_id]
    written = np.empty(count, np.int32)
    codec.write_dense(written)
    numbers = np.zeros((workers, size), np.int32)
    numbers[codec.sent != 0] = written.reshape(-1, size)
    total = summation.reduce_scatter(numbers.view(np.uint32).reshape(-1)).view(np.int32)
    piece = segments(
        SegmentTable([Segment(size, sparse=False)]), [values[worker_id * size :][:size]], [None], workers
    )
    blocks = slice(*table.blocks[worker_id : worker_id + 2].tolist())
    piece.set_scales(codec.fields[worker_id : worker_id + 1], codec.scales[blocks])
    count, _ = piece.set_candidates(no_words)
    return piece.decode(total[:count], np.empty(0, np.int32), workers if average else 1)[0]

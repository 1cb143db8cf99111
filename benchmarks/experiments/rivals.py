"""The codec beside zstd, lz4 and torch.sparse_coo: bytes and processor time of a sum.

A server decodes the rivals' messages, adds them, and encodes the sum in the same way. The codec's words are
added as they are, as a switch does. Non-zeros are anywhere. Times are processor times over all threads. Every
sum is compared with one that NumPy computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks import Experiment, Size
from peelsum.allreduce import Choice, PlanSettings
from peelsum.allreduce.costs import UnionCounts
from peelsum.allreduce.protocol import Round, Rounds, SumProtocol, Sums
from peelsum.bench.codec.rows import Form, fewest_words
from peelsum.bench.codec.timing import (
    NotExactError,
    TimedDevice,
    fixed_point_format,
    require_exact,
    require_memory,
    tensor,
    two_round_protocol,
)
from peelsum.codec import FixedPoint, occupied, warm_up
from peelsum.summation import Words

#: The codec's ways, each with form and index; `auto` is the planner's choice for the fewest words.
OURS: dict[str, tuple[Form, str]] = {
    "auto": ("auto", ""),
    "compact": ("compact", "bitmap"),
    "sketch": ("sketch", "bitmap"),
}
_REPEATS, _WARM_UP = 3, 2**14

Floats = NDArray[np.float32]
_T = TypeVar("_T")
_Array = TypeVar("_Array", Floats, Words)


class Rival(NamedTuple):
    """A way to encode float32[n] as a message, and to combine messages."""

    encode: Callable[[Floats], Any]
    combine: Callable[[list[Any]], Any]
    """Returns the message of the sum of the given messages' tensors."""
    decode: Callable[[Any], Floats]
    size: Callable[[Any], int]
    """Returns the bytes of a message."""


class TimedSum(NamedTuple):
    """One run of one way: bytes that the first worker sends, that each receives, seconds, and the sum."""

    sent: int
    received: int
    seconds: dict[str, float]
    """Processor seconds to `encode`, `combine` and `decode`."""
    decoded: Floats
    fixed: FixedPoint | None = None


def measure(seed: int, elements: int, density: float, workers: int) -> Iterator[dict[str, Any]]:
    """Sum the tensors of some workers in every way; yield the rows.

    Raises NotEnoughMemoryError, and NotExactError if a sum is wrong.
    """
    others = rivals()
    require_memory(elements, density, workers)
    warm_up()
    for _ in _rows(_WARM_UP, density, 2, others, 0):
        pass  # the first calls of a library take longer
    yield from _rows(elements, density, workers, others, seed)


def rivals() -> dict[str, Rival]:
    """Return the rivals by name."""
    import zstandard
    from lz4 import block

    def compressed(compress: Callable[[Any], bytes], decompress: Callable[[bytes], bytes]) -> Rival:
        def decode(message: bytes) -> Floats:
            return np.frombuffer(decompress(message), np.float32)

        def encode(values: Floats) -> bytes:
            return compress(values.view(np.uint8))

        return Rival(encode, lambda messages: encode(_float_sum(map(decode, messages))), decode, len)

    unzip = zstandard.ZstdDecompressor().decompress
    return {
        "zstd level 1": compressed(zstandard.ZstdCompressor(level=1).compress, unzip),
        "zstd level 3": compressed(zstandard.ZstdCompressor(level=3).compress, unzip),
        "lz4": compressed(block.compress, block.decompress),
        "torch.sparse_coo": _sparse_coo(),
        "float32": Rival(lambda values: values, _float_sum, lambda values: values, lambda sent: sent.nbytes),
    }


def _sparse_coo() -> Rival:
    """Return torch's coordinate format: an int64 and a float32 for each non-zero."""
    import torch

    def combine(messages: list[Any]) -> Any:
        indices = torch.cat([message.indices() for message in messages], 1)
        values = torch.cat([message.values() for message in messages])
        shape = messages[0].shape
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False).coalesce()

    return Rival(
        lambda values: torch.from_numpy(values).to_sparse(),
        combine,
        lambda message: message.to_dense().numpy(),
        lambda message: message.indices().nbytes + message.values().nbytes,
    )


def _float_sum(tensors: Iterable[Floats]) -> Floats:
    return _merged(np.add, tensors)


def _merged(operation: np.ufunc, arrays: Iterable[_Array]) -> _Array:
    """Return the sum or the OR of at least two arrays."""
    rest = iter(arrays)
    total = operation(next(rest), next(rest))
    for array in rest:
        operation(total, array, out=total)
    return cast(_Array, total)


def _rows(
    elements: int, density: float, workers: int, others: dict[str, Rival], seed: int
) -> Iterator[dict[str, Any]]:
    tensors = [tensor("uniform", elements, density, seed + worker)[0] for worker in range(workers)]
    exact = np.sum(tensors, axis=0, dtype=np.float64)

    def row(way: str, arithmetic: str, run: Callable[[int], TimedSum]) -> tuple[dict[str, Any], TimedSum]:
        """Return the row of the run that took the least time."""
        best = min(map(run, range(_REPEATS)), key=lambda result: sum(result.seconds.values()))
        if not np.allclose(best.decoded, exact, rtol=1e-5, atol=1e-5):
            raise NotExactError(
                "sum: it differs from that of NumPy's float64; please report it with your command"
            )
        size = {"bytes_sent": best.sent, "bytes_received": best.received}
        times = {f"{step}_ms": round(1e3 * seconds, 3) for step, seconds in best.seconds.items()}
        return {"way": way, "arithmetic": arithmetic, **size, **times}, best

    for way, (form, index) in OURS.items():
        choice = fewest_words(form, index, elements, _seen(tensors), PlanSettings())
        exact_row, result = row(way, "int32", partial(_exchange, choice, tensors))
        assert result.fixed is not None
        require_exact(tensors, result.decoded, result.fixed)
        yield exact_row
    for way, rival in others.items():
        messages = [rival.encode(values) for values in tensors[1:]]
        yield row(way, "float32", partial(_message, rival, tensors[0], messages))[0]


def _seen(tensors: list[Floats]) -> UnionCounts:
    """Return what the workers know of a union that is that of the last step."""
    return UnionCounts(tuple(occupied(np.flatnonzero(np.any(tensors, axis=0))).tolist()))


def _message(rival: Rival, values: Floats, others: list[Any], seed: int) -> TimedSum:
    """Encode one worker's values, combine all messages and decode the sum; no rival uses a seed."""
    seconds = dict[str, float]()
    first = _timed(seconds, "encode", rival.encode, values)
    message = _timed(seconds, "combine", rival.combine, [first, *others])
    decoded = _timed(seconds, "decode", rival.decode, message)
    return TimedSum(rival.size(first), rival.size(message), seconds, decoded)


def _exchange(choice: Choice, tensors: list[Floats], seed: int) -> TimedSum:
    """Run all workers' protocols; the first worker's encoding and decoding count."""
    device, likely = TimedDevice.of("cpu"), int(_seen(tensors).non_zeros)
    seconds, words = dict[str, float](), 0

    def begin(values: Floats) -> tuple[SumProtocol, Rounds, Round]:
        protocol = two_round_protocol(device, choice, values, PlanSettings(), len(tensors), seed, likely)
        rounds = protocol.rounds()
        return protocol, rounds, next(rounds)

    def written(request: Round) -> Sums:
        ored, added = np.empty(request.or_words, np.uint32), np.empty(request.add_words, np.uint32)
        request.write(ored, added)
        return Sums(ored, added, ored)

    def combined(sent: list[Sums]) -> Sums:
        ored = _merged(np.bitwise_or, (sums.ored for sums in sent))
        return Sums(ored, _merged(np.add, (sums.added for sums in sent)), ored)

    def advanced(rounds: Rounds, sums: Sums) -> Round | None:
        try:
            return rounds.send(sums)
        except StopIteration:
            return None

    workers = [_timed(seconds, "encode", begin, tensors[0]), *map(begin, tensors[1:])]
    requests = [request for *_, request in workers]
    while requests:
        sent = [_timed(seconds, "encode", written, requests[0]), *map(written, requests[1:])]
        sums = _timed(seconds, "combine", combined, sent)
        words += sums.ored.size + sums.added.size
        copies = [(sums.ored.copy(), sums.added.copy()) for _ in workers]  # protocols write over them
        copied = [Sums(ored, added, ored) for ored, added in copies]
        following = [_timed(seconds, "decode", advanced, workers[0][1], copied[0])]
        following += [
            advanced(rounds, copies) for (_, rounds, _), copies in zip(workers[1:], copied[1:], strict=True)
        ]
        requests = [request for request in following if request is not None]
    first = workers[0][0]
    (decoded,) = _timed(seconds, "decode", first.codec.decode, first.dense, first.sparse, 1)
    return TimedSum(4 * words, 4 * words, seconds, decoded, fixed_point_format(first))


def _timed(seconds: dict[str, float], step: str, work: Callable[..., _T], *arguments: Any) -> _T:
    """Return work(*arguments), and add the processor time that it took to seconds[step]."""
    before = time.process_time()
    result = work(*arguments)
    seconds[step] = seconds.get(step, 0.0) + time.process_time() - before
    return result


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "way": "how tensors are encoded",
        "arithmetic": "what is added: a float32 sum depends on the order of the workers",
        "bytes_sent": "bytes that the first worker sends",
        "bytes_received": "bytes of the sum that every worker receives",
        "encode_ms": "milliseconds to encode one worker's tensor",
        "combine_ms": "milliseconds to turn all workers' messages into that of the sum",
        "decode_ms": "milliseconds to turn the message of the sum into float32",
    },
    keys=("way",),
    defaults={"density": 0.05},
    sizes={
        "quick": Size([{"elements": 2**20, "workers": 2}], 1),
        "usual": Size([{"elements": (2**22, 2**24), "workers": (2, 4, 8)}], 1),
    },
    ranges={"elements": (1, 2**40), "density": (1e-9, 1), "workers": (2, 32)},
)

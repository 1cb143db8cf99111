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

from benchmarks import Column, Experiment, Size
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


class _Run(NamedTuple):
    """One run of one way."""

    sent: int
    received: int
    seconds: tuple[float, float, float]
    """Encoding, combining, decoding."""
    decoded: Floats
    fixed: FixedPoint | None


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
    return {
        "zstd level 1": _zstd(1),
        "zstd level 3": _zstd(3),
        "lz4": _lz4(),
        "torch.sparse_coo": _sparse_coo(),
        "float32": Rival(
            lambda values: values, _float_sum, lambda values: values, lambda message: int(message.nbytes)
        ),
    }


def _zstd(level: int) -> Rival:
    import zstandard

    compressor, decompressor = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    return _compressed(lambda values: compressor.compress(values), decompressor.decompress)


def _lz4() -> Rival:
    from lz4 import block

    return _compressed(block.compress, block.decompress)


def _compressed(compress: Callable[[Any], bytes], decompress: Callable[[bytes], bytes]) -> Rival:
    def decode(message: bytes) -> Floats:
        return np.frombuffer(decompress(message), np.float32)

    def encode(values: Floats) -> bytes:
        return compress(values.view(np.uint8))

    return Rival(encode, lambda messages: encode(_float_sum(map(decode, messages))), decode, len)


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
    exact = np.zeros(elements)
    for values in tensors:
        exact += values
    seen = _seen(tensors)
    for way, (form, index) in OURS.items():
        choice = fewest_words(form, index, elements, seen, PlanSettings())
        run = _fastest(partial(_exchange, choice, tensors), exact)
        assert run.fixed is not None
        require_exact(tensors, run.decoded, run.fixed)
        yield {"way": way, "arithmetic": "int32", **_figures(run)}
    for way, rival in others.items():
        messages = [rival.encode(values) for values in tensors[1:]]
        run = _fastest(partial(_message, rival, tensors[0], messages), exact)
        yield {"way": way, "arithmetic": "float32", **_figures(run)}


def _seen(tensors: list[Floats]) -> UnionCounts:
    """Return what the workers know of a union that is that of the last step."""
    used = np.zeros(tensors[0].size, np.bool_)
    for values in tensors:
        used |= values != 0
    return UnionCounts(tuple(occupied(np.flatnonzero(used)).tolist()))


def _figures(run: _Run) -> dict[str, Any]:
    steps = zip(("encode_ms", "combine_ms", "decode_ms"), run.seconds, strict=True)
    times = {name: round(1e3 * seconds, 3) for name, seconds in steps}
    return {"bytes_sent": run.sent, "bytes_received": run.received, **times}


def _fastest(run: Callable[[int], _Run], exact: NDArray[np.float64]) -> _Run:
    """Return the run that took the least time. Raises NotExactError if its sum is not close to `exact`."""
    best = min((run(number) for number in range(_REPEATS)), key=lambda timed: sum(timed.seconds))
    if not np.allclose(best.decoded, exact, rtol=1e-5, atol=1e-5):
        raise NotExactError(
            "sum: it differs from that of NumPy's float64; please report it with your command"
        )
    return best


def _message(rival: Rival, values: Floats, others: list[Any], seed: int) -> _Run:
    """Encode one worker's values, combine all messages and decode the sum; no rival uses a seed."""
    first, encode_s = _timed(lambda: rival.encode(values))
    message, combine_s = _timed(lambda: rival.combine([first, *others]))
    decoded, decode_s = _timed(lambda: rival.decode(message))
    return _Run(rival.size(first), rival.size(message), (encode_s, combine_s, decode_s), decoded, None)


def _exchange(choice: Choice, tensors: list[Floats], seed: int) -> _Run:
    """Run all workers' protocols; the first worker's encoding and decoding count."""
    device, likely = TimedDevice.of("cpu"), int(_seen(tensors).non_zeros)

    def begin(values: Floats) -> tuple[SumProtocol, Rounds, Round]:
        protocol = two_round_protocol(device, choice, values, PlanSettings(), len(tensors), seed, likely)
        rounds = protocol.rounds()
        return protocol, rounds, next(rounds)

    (first, mine, asked), encode_s = _timed(lambda: begin(tensors[0]))
    others = [begin(values)[1:] for values in tensors[1:]]
    combine_s = decode_s = 0.0
    words, going = 0, [(mine, asked), *others]
    while going:
        first_words, seconds = _timed(lambda: _written(going[0][1]))  # noqa: B023  # it is called at once
        encode_s += seconds
        sent = [first_words, *(_written(asked) for _, asked in going[1:])]
        sums, seconds = _timed(lambda: _combined(sent))  # noqa: B023
        combine_s += seconds
        words += first_words.ored.size + first_words.added.size
        copies = [_copied(sums) for _ in going]  # protocols write over them
        advanced, seconds = _timed(lambda: _advanced(going[:1], copies))  # noqa: B023
        decode_s += seconds
        going = advanced + _advanced(going[1:], copies[1:])
    (decoded,), seconds = _timed(lambda: first.codec.decode(first.dense, first.sparse, 1))
    seconds += decode_s
    return _Run(4 * words, 4 * words, (encode_s, combine_s, seconds), decoded, fixed_point_format(first))


def _copied(sums: Sums) -> Sums:
    ored = sums.ored.copy()
    return Sums(ored, sums.added.copy(), ored)


def _written(asked: Round) -> Sums:
    ored, added = np.empty(asked.or_words, np.uint32), np.empty(asked.add_words, np.uint32)
    asked.write(ored, added)
    return Sums(ored, added, ored)


def _combined(sent: list[Sums]) -> Sums:
    """Return the OR and the sum of all workers' words."""
    ored = _merged(np.bitwise_or, (words.ored for words in sent))
    return Sums(ored, _merged(np.add, (words.added for words in sent)), ored)


def _advanced(going: list[tuple[Rounds, Round]], copies: list[Sums]) -> list[tuple[Rounds, Round]]:
    """Send each exchange its sums; return the exchanges that ask for more."""
    following = []
    for (rounds, _), sums in zip(going, copies, strict=False):
        try:
            following.append((rounds, rounds.send(sums)))
        except StopIteration:
            continue
    return following


def _timed(work: Callable[[], _T]) -> tuple[_T, float]:
    """Return the result of `work` and the processor time that it took."""
    before = time.process_time()
    result = work()
    return result, time.process_time() - before


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "way": Column("how tensors are encoded"),
        "arithmetic": Column("what is added: a float32 sum depends on the order of the workers"),
        "bytes_sent": Column("bytes that the first worker sends"),
        "bytes_received": Column("bytes of the sum that every worker receives"),
        "encode_ms": Column("milliseconds to encode one worker's tensor"),
        "combine_ms": Column("milliseconds to turn all workers' messages into that of the sum"),
        "decode_ms": Column("milliseconds to turn the message of the sum into float32"),
    },
    keys=("way",),
    defaults={"density": 0.05},
    sizes={
        "quick": Size([{"elements": 2**20, "workers": 2}], 1),
        "usual": Size([{"elements": (2**22, 2**24), "workers": (2, 4, 8)}], 1),
    },
    ranges={"elements": (1, 2**40), "density": (1e-9, 1), "workers": (2, 32)},
)

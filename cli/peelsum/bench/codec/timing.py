"""Time one worker's step through the codec: encode, sum over this worker alone, decode, and check.

The time between encoding and decoding does not count. The check uses NumPy's arithmetic on the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Choice, PlanSettings, TensorPlan
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.costs import UnionCounts
from peelsum.allreduce.history import StepStatistics
from peelsum.allreduce.one_round import OneRound, Prediction
from peelsum.allreduce.plan import Layout, Plan
from peelsum.allreduce.protocol import Round, SumProtocol, Sums
from peelsum.allreduce.two_rounds import TwoRounds
from peelsum.bench.codec.device import TimedDevice
from peelsum.codec import HOST, CodecDevice, FixedPoint, occupied
from peelsum.summation import Words

#: Runs of a measurement; it ends earlier once they have taken _ENOUGH_S seconds.
REPEATS = 5
_ENOUGH_S = 2.0
_CHECK_BATCH = 2**22


class NotExactError(Exception):
    """A decoded tensor differs from the encoded one. The message names the element."""


class Measured(NamedTuple):
    """The measurement of one step."""

    words: int
    """32-bit words sent."""
    encode_s: float
    """Seconds of encoding, by `TimedDevice.clock`."""
    decode_s: float
    """Seconds of decoding."""
    candidates: NDArray[np.int64] | None
    """int64[k]: the elements that were decoded; None means all."""
    left_over: int
    """Number of candidates that peeling did not recover."""

    @property
    def codec_s(self) -> float:
        """Seconds of encoding and decoding together."""
        return self.encode_s + self.decode_s


def two_round_protocol(
    device: TimedDevice,
    choice: Choice,
    values: Any,
    settings: PlanSettings,
    workers: int,
    seed: int,
    likely: int,
) -> SumProtocol:
    """Return one worker's protocol of two rounds for a step with the single tensor values[n], on the device.

    likely: the number of the union's non-zeros that the history expects.
    """
    plan = Plan((TensorPlan("g", (len(values),), "float32", choice),), workers, 1, settings)
    chooser = Chooser(values="sketch" if choice.form == "sketch" else "compact")
    add_to_history(chooser, plan.layout, UnionCounts.uniform(len(values), likely / len(values)))
    codec = device.codec.segments(plan.layout.table, [values], [None], workers)
    return TwoRounds(plan, chooser, device.codec, codec, seed)


def _one_round_protocol(
    device: TimedDevice, choice: Choice, values: Any, settings: PlanSettings, seed: int
) -> SumProtocol:
    """Return the protocol of one round for values[n], whose history has a step with the same values."""
    previous = two_round_protocol(device, choice, values, settings, 1, seed, len(values))
    _run(device, previous)
    sums = device.codec.to_host(previous.codec.decode(previous.dense, previous.sparse, 1)[0])
    plan, chooser = previous.plan, Chooser()
    statistics = UnionCounts(tuple(occupied(np.flatnonzero(sums)).tolist()))
    add_to_history(chooser, plan.layout, statistics, previous.exponents)
    codec = device.codec.segments(plan.layout.table, [values], [None], 1)
    return OneRound(plan, chooser, device.codec, codec, Prediction.of(plan, chooser.history, seed))


def add_to_history(
    chooser: Chooser, layout: Layout, statistics: UnionCounts, levels: NDArray[np.int32] | None = None
) -> None:
    """Add a step of a layout's only tensor to the chooser's history.

    levels: int32[blocks], the exponent fields of its blocks; zeros if None.
    """
    if levels is None:
        levels = np.zeros(int(layout.table.blocks[-1]), np.int32)
    step = StepStatistics(np.array([True]), np.array([statistics.occupied]), levels, np.zeros(1), None)
    chooser.history.record(layout.keys, layout.table, step, chooser.prices)


def fixed_point_format(protocol: SumProtocol) -> FixedPoint:
    """Return the fixed-point format of the protocol's tensor, after its first round."""
    scales, block = protocol.codec.scales, protocol.layout.table.segments[0].block
    return FixedPoint(int(scales.min()), scales - scales.min(), block)


def measure_step(
    device: TimedDevice,
    choice: Choice,
    values: NDArray[np.float32],
    settings: PlanSettings,
    seed: int,
    *,
    ahead: bool = False,
) -> Measured:
    """Measure a step that sums values[n] with `choice`; copying them to the device does not count.

    ahead: whether to use the protocol of one round, with a history of the same values.
    Raises NotExactError if a decoded element is wrong.
    """
    clock, codec, device_values = device.clock, device.codec, device.place(values)
    if ahead:
        protocol, encode_s = _one_round_protocol(device, choice, device_values, settings, seed), 0.0
    else:
        nonzeros = int(np.count_nonzero(values))
        started = clock()
        protocol = two_round_protocol(device, choice, device_values, settings, 1, seed, nonzeros)
        encode_s = clock() - started
    words, rounds_encode_s, decode_s = _run(device, protocol)
    started = clock()
    (decoded,) = protocol.codec.decode(protocol.dense, protocol.sparse, 1)
    codec.synchronize()
    decode_s += clock() - started
    require_exact([values], codec.to_host(decoded), fixed_point_format(protocol))
    positions = None
    if choice.index is not None:
        union = codec.to_host(protocol.union).view(np.uint32)
        positions = HOST.positions(union, values.size)
    return Measured(words, encode_s + rounds_encode_s, decode_s, positions, protocol.left_over)


def _run(device: TimedDevice, protocol: SumProtocol) -> tuple[int, float, float]:
    """Run all rounds of one worker's protocol; return words sent, and seconds of encoding and decoding."""
    clock, codec = device.clock, device.codec
    started = clock()
    rounds = protocol.rounds()
    request: Round | None = next(rounds)
    encode_s, decode_s, words = clock() - started, 0.0, 0
    while request is not None:
        started = clock()
        or_words, add_words = codec.words(request.or_words), codec.words(request.add_words)
        request.write(or_words, add_words)
        sent_or, sent_add = words_on_host(or_words, codec), words_on_host(add_words, codec)
        encode_s += clock() - started
        words += len(sent_or) + len(sent_add)
        or_sum, add_sum = sent_or.copy(), sent_add.copy()
        started = clock()
        try:
            request = rounds.send(Sums(codec.to_device(or_sum), codec.to_device(add_sum), or_sum))
        except StopIteration:
            request = None
        decode_s += clock() - started
    return words, encode_s, decode_s


def fastest(run: Callable[[int], Measured]) -> Measured:
    """Return the fastest of run(0), run(1), ...: REPEATS runs, or fewer if they take long."""
    runs: list[Measured] = []
    while len(runs) < REPEATS and sum(measured.codec_s for measured in runs) < _ENOUGH_S:
        runs.append(run(len(runs)))
    return min(runs, key=lambda measured: measured.codec_s)


def words_on_host(words: Any, codec: CodecDevice) -> Words:
    """Return the device's words in the host's memory, ready to be sent."""
    if codec.direct:
        return cast(Words, words)
    out = codec.staging_buffer(len(words))
    codec.copy_async(words, out)
    codec.synchronize()
    return out


def require_exact(
    tensors: Sequence[NDArray[np.float32]], decoded: NDArray[np.float32], fixed: FixedPoint
) -> None:
    """Raise NotExactError unless decoded[n] is the sum of the workers' tensors in fixed point, by NumPy."""
    for start in range(0, decoded.size, _CHECK_BATCH):
        end = min(start + _CHECK_BATCH, decoded.size)
        factor = np.ldexp(1.0, fixed.scales_at(np.arange(start, end)))
        total = np.zeros(end - start)  # of integers below 2**31, which float64 adds exactly
        for values in tensors:
            total += np.rint(values[start:end] * factor)
        expected = (total / factor).astype(np.float32)
        wrong = np.flatnonzero(expected != decoded[start:end])
        if wrong.size:
            i = int(wrong[0])
            raise NotExactError(
                f"element {start + i}: {decoded[start + i]} was decoded instead of {expected[i]}; this is a "
                "bug in the codec, please report it with your command"
            )

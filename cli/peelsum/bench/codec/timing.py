"""Time one worker's step through the codec: encode, sum over this worker alone, decode, and check.

The check uses NumPy's arithmetic on the tensor. Time between encoding and decoding does not count. On a
single core, time is that of the thread, so that other processes matter less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Choice, Settings, TensorPlan
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.costs import Seen
from peelsum.allreduce.history import Learned
from peelsum.allreduce.one_round import Expected, OneRound
from peelsum.allreduce.plan import Layout, Plan
from peelsum.allreduce.protocol import Round, SumProtocol, Sums
from peelsum.allreduce.two_rounds import TwoRounds
from peelsum.bench.codec.device import TimedDevice
from peelsum.codec import HOST, Device, FixedPoint, occupied
from peelsum.summation import Words

#: Number of runs of a measurement, unless they reach _ENOUGH_S seconds before.
REPEATS = 5
_ENOUGH_S = 2.0
_CHECKED_AT_A_TIME = 2**22


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
    """Elements int64[k] that were decoded; None means all."""
    left: int
    """Number of candidates that peeling did not recover."""

    @property
    def codec_s(self) -> float:
        """Seconds of encoding and decoding together."""
        return self.encode_s + self.decode_s


def protocol_of(
    device: TimedDevice, choice: Choice, values: Any, settings: Settings, workers: int, seed: int, likely: int
) -> SumProtocol:
    """Return one worker's sum in two rounds of values[n], on the device, as the only tensor of a step.

    likely: the non-zeros of the union, as if it were that of the last step.
    """
    plan = Plan((TensorPlan("g", (len(values),), "float32", choice),), workers, 1, settings)
    chooser = Chooser(values="sketch" if choice.form == "sketch" else "compact")
    taught(chooser, plan.layout, Seen.uniform(len(values), likely / len(values)))
    codec = device.codec.segments(plan.layout.table, [values], [None], workers)
    return TwoRounds(plan, chooser, device.codec, codec, seed)


def _ahead(device: TimedDevice, choice: Choice, values: Any, settings: Settings, seed: int) -> SumProtocol:
    """Return one worker's sum in one round of values[n], which knows what a step before has shown of them."""
    before = protocol_of(device, choice, values, settings, 1, seed, len(values))
    _run(device, before)
    sums = device.codec.on_host(before.codec.read(before.dense, before.sparse, 1)[0])
    plan, chooser = before.plan, Chooser()
    taught(chooser, plan.layout, Seen(tuple(occupied(np.flatnonzero(sums)).tolist())), before.exponents)
    codec = device.codec.segments(plan.layout.table, [values], [None], 1)
    return OneRound(plan, chooser, device.codec, codec, Expected.of(plan, chooser.history, seed))


def taught(chooser: Chooser, layout: Layout, known: Seen, levels: NDArray[np.int32] | None = None) -> None:
    """Tell a chooser of a step of a layout's only tensor. levels: int32[blocks], fields of its blocks."""
    if levels is None:
        levels = np.zeros(int(layout.table.blocks[-1]), np.int32)
    step = Learned(np.array([True]), np.array([known.occupied]), levels, np.zeros(1), None)
    chooser.history.learn(layout.keys, layout.table, step, chooser.prices)


def format_of(protocol: SumProtocol) -> FixedPoint:
    """Return the fixed-point format of the protocol's tensor, after its first round."""
    scales, block = protocol.codec.scales, protocol.layout.table.segments[0].block
    return FixedPoint(int(scales.min()), scales - scales.min(), block)


def one_step(
    device: TimedDevice,
    choice: Choice,
    values: NDArray[np.float32],
    settings: Settings,
    seed: int,
    *,
    ahead: bool = False,
) -> Measured:
    """Measure all rounds of values[n] with `choice`; copying them to the device does not count.

    ahead: whether index and numbers travel together, because an earlier step had the same values.
    Raises NotExactError if a decoded element is wrong.
    """
    clock, codec, there = device.clock, device.codec, device.place(values)
    likely = int(np.count_nonzero(values))
    if ahead:
        protocol = _ahead(device, choice, there, settings, seed)
    started = clock()
    if not ahead:
        protocol = protocol_of(device, choice, there, settings, 1, seed, likely)
    encode_s = clock() - started
    words, more_s, decode_s = _run(device, protocol)
    started = clock()
    (decoded,) = protocol.codec.read(protocol.dense, protocol.sparse, 1)
    codec.settle()
    decode_s += clock() - started
    require_exact([values], codec.on_host(decoded), format_of(protocol))
    positions = None
    if choice.index is not None:
        union = codec.on_host(protocol.union).view(np.uint32)
        positions = HOST.positions(union, values.size)
    return Measured(words, encode_s + more_s, decode_s, positions, protocol.left_over)


def _run(device: TimedDevice, protocol: SumProtocol) -> tuple[int, float, float]:
    """Go through a protocol's rounds; return the words sent, and the seconds of encoding and decoding."""
    clock, codec = device.clock, device.codec
    started = clock()
    rounds = protocol.rounds()
    asked: Round | None = next(rounds)
    encode_s, decode_s, words = clock() - started, 0.0, 0
    while asked is not None:
        started = clock()
        own = codec.words(asked.or_words), codec.words(asked.add_words)
        asked.write(*own)
        ored, added = (sent_words(one, codec) for one in own)
        encode_s += clock() - started
        words += len(ored) + len(added)
        near = ored.copy()
        arrived = near, added.copy()
        started = clock()
        try:
            asked = rounds.send(Sums(codec.placed(arrived[0]), codec.placed(arrived[1]), near))
        except StopIteration:
            asked = None
        decode_s += clock() - started
    return words, encode_s, decode_s


def fastest(run: Callable[[int], Measured]) -> Measured:
    """Return the fastest of run(0), run(1), ...: REPEATS runs, or fewer if they take long."""
    runs: list[Measured] = []
    while len(runs) < REPEATS and sum(one.codec_s for one in runs) < _ENOUGH_S:
        runs.append(run(len(runs)))
    return min(runs, key=lambda one: one.codec_s)


def sent_words(words: Any, codec: Device) -> Words:
    """Return words in the host's memory, ready to be sent."""
    if codec.direct:
        return cast(Words, words)
    out = codec.traveling(len(words))
    codec.send(words, out)
    codec.settle()
    return out


def require_exact(
    tensors: Sequence[NDArray[np.float32]], decoded: NDArray[np.float32], fixed: FixedPoint
) -> None:
    """Raise NotExactError unless decoded[n] is the sum of the workers' tensors in fixed point, by NumPy."""
    for start in range(0, decoded.size, _CHECKED_AT_A_TIME):
        end = min(start + _CHECKED_AT_A_TIME, decoded.size)
        factor = np.ldexp(1.0, fixed.scales_at(np.arange(start, end)))
        total = np.zeros(end - start)  # of integers below 2**31, which float64 adds exactly
        for values in tensors:
            total += np.rint(values[start:end] * factor)
        wanted = (total / factor).astype(np.float32)
        wrong = np.flatnonzero(wanted != decoded[start:end])
        if wrong.size:
            i = int(wrong[0])
            raise NotExactError(
                f"element {start + i}: {decoded[start + i]} was decoded instead of {wanted[i]}; this is a "
                "bug in the codec, please report it with your command"
            )

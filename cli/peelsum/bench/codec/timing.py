"""Random tensors, and the time of one worker's step with one: encode, sum over it alone, decode, and check.

The time between encoding and decoding does not count. The check uses NumPy's arithmetic on the tensor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numba import config
from numpy.typing import NDArray

from peelsum.allreduce import Choice, PlanSettings, TensorPlan
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.history import StepStatistics
from peelsum.allreduce.indexes import UnionCounts
from peelsum.allreduce.one_round import OneRound, Prediction
from peelsum.allreduce.plan import Layout, Plan
from peelsum.allreduce.protocol import Recorder, StepExchanges, SumProtocol
from peelsum.allreduce.step import StepDecoder
from peelsum.allreduce.two_rounds import TwoRounds
from peelsum.bench.devices import DEVICES, DeviceName, NoDeviceError
from peelsum.bench.point import Support
from peelsum.codec import BLOCK_SIZES, HOST, CodecDevice, CodecError, FixedPoint, occupied, warm_up
from peelsum.codec import device as codec_device
from peelsum.summation import Part, Words

#: Runs of a measurement; it ends earlier once they have taken _ENOUGH_S seconds.
REPEATS = 5
_ENOUGH_S = 2.0
_CHECK_BATCH = 2**22
#: Peak memory: of an element, the value, random numbers and copies of words; of a candidate, peeling.
_BYTES_PER_ELEMENT, _BYTES_PER_CANDIDATE = 24, 120
SUPPORTS: tuple[Support, ...] = get_args(Support)
#: Elements of a row in support `rows`; number of columns in support `columns`, half of which are all zero.
ROW = 64
COLUMNS = 256
_NONZERO_COLUMNS = COLUMNS // 2


def positions(support: Support, elements: int, density: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return random positions of non-zeros, int64[k], ascending.

    With `uniform` each element, with `rows` each row of ROW elements is non-zero with probability `density`.
    With `columns`, half of the columns are zero, and elements of the others are non-zero with probability
    `2 * density`; `density` is then at most 1/2.
    """
    if support == "rows":
        rows = np.flatnonzero(rng.random(-(-elements // ROW), np.float32) < density)
        nonzero = (rows[:, np.newaxis] * ROW + np.arange(ROW)).reshape(-1)
        return nonzero[: np.searchsorted(nonzero, elements)]
    if support == "uniform":
        return np.flatnonzero(rng.random(elements, np.float32) < density)
    in_nonzero_column = np.resize(rng.permutation(COLUMNS) < _NONZERO_COLUMNS, elements)
    return np.flatnonzero(in_nonzero_column & (rng.random(elements, np.float32) < 2 * density))


def tensor(
    support: Support, elements: int, density: float, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return float32[elements] with normally distributed values at `positions`, and these positions."""
    rng = np.random.default_rng([seed, elements])
    nonzero = positions(support, elements, density, rng)
    normal = rng.standard_normal(nonzero.size, np.float32)
    values = np.zeros(elements, np.float32)
    values[nonzero] = np.where(normal == 0, np.float32(1), normal)
    return values, nonzero


def expected_statistics(support: Support, elements: int, density: float) -> UnionCounts:
    """Return the expected statistics of a tensor with this support: its occupied blocks of each size."""
    if support == "uniform":
        return UnionCounts.uniform(elements, density)

    def share(size: int) -> float:
        """Return the share of blocks of `size` elements, a power of 2, that hold a non-zero."""
        if support == "rows":
            return float(1 - (1 - density) ** max(size // ROW, 1))
        zero, half = 1 - 2 * density, _NONZERO_COLUMNS
        if size >= COLUMNS:
            return float(1 - zero ** (size // 2))
        # By the number of a block's columns that are not all zero.
        empty = sum(
            math.comb(half, count) * math.comb(half, size - count) / math.comb(COLUMNS, size) * zero**count
            for count in range(max(0, size - half), min(size, half) + 1)
        )
        return 1 - empty

    return UnionCounts(tuple(2.0**-b * elements * share(2**b) for b in range(BLOCK_SIZES)))


@dataclass(frozen=True)
class TimedDevice:
    """A device on which to measure the codec."""

    name: DeviceName
    codec: CodecDevice
    """The codec on it."""
    place: Callable[[NDArray[np.float32]], Any]
    """Copies the host's float32[n] to the device."""
    clock: Callable[[], float] = time.perf_counter
    """Returns seconds: of the thread's processor time if Numba uses one thread, else of the wall clock."""

    @classmethod
    def of(cls, name: str) -> TimedDevice:
        """Return the device of that name, with compiled kernels. Raises NoDeviceError if it is missing."""
        if name == "cpu":
            warm_up()
            one_thread = config.NUMBA_NUM_THREADS == 1  # type: ignore[attr-defined]  # made at run time
            clock = time.thread_time if one_thread else time.perf_counter
            return cls("cpu", codec_device(), lambda values: values, clock)
        if name != "cuda":
            raise NoDeviceError(f"--device: {name!r} is unknown; use one of {', '.join(DEVICES)}")
        try:
            codec = codec_device("gpu")
        except CodecError as error:
            raise NoDeviceError(f"--device: 'cuda' is not available; use cpu: {error}") from None
        import torch

        # Without a GPU, Triton's interpreter runs the kernels on the CPU.
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        warm_up("gpu")
        return cls("cuda", codec, lambda values: torch.from_numpy(values).to(device))


class NotEnoughMemoryError(ValueError):
    """A tensor is too large to be measured on this machine. The message says by how much."""


def require_memory(elements: int, density: float) -> None:
    """Raise NotEnoughMemoryError unless a tensor of `elements` elements fits in memory."""
    element_bytes = _BYTES_PER_ELEMENT + _BYTES_PER_CANDIDATE * density
    needed, free = elements * element_bytes, free_bytes()
    if free is not None and needed > free:
        raise NotEnoughMemoryError(
            f"--elements: {elements:,} at density {density:g} take about {needed / 2**30:,.1f} GiB, "
            f"and {free / 2**30:.1f} are free; use at most {int(free / element_bytes):,}"
        )


def free_bytes() -> int | None:
    """Return Linux's estimate of the available memory in bytes; None on other systems."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kibibytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kibibytes[0]) * 1024 if kibibytes else None


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


class _Loopback:
    """A backend of one worker, with a word in each chunk."""

    workers, worker_id, lanes = 1, 0, 1

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """Return copies of the words."""
        return [part.words.copy() for part in parts]


def _exchanges(device: TimedDevice, plan: Plan) -> StepExchanges:
    return StepExchanges(_Loopback(), device.codec, plan, [], Recorder(device.clock))


def _two_round_protocol(
    device: TimedDevice, choice: Choice, values: Any, settings: PlanSettings, seed: int, likely: int
) -> SumProtocol:
    """Return the protocol of two rounds for a step with the single tensor values[n], on the device.

    likely: the number of the union's non-zeros that the history expects.
    """
    tensor_plan = TensorPlan("g", (len(values),), "float32", choice)
    plan = Plan((tensor_plan,), _Loopback.workers, _Loopback.lanes, settings)
    chooser = Chooser(values="sketch" if choice.form == "sketch" else "compact")
    add_to_history(chooser, plan.layout, UnionCounts.uniform(len(values), likely / len(values)))
    codec = device.codec.segments(plan.layout.table, [values], [None], 1)
    return TwoRounds(plan, chooser, codec, _exchanges(device, plan), seed)


def _one_round_protocol(
    device: TimedDevice, choice: Choice, values: Any, before: Any, settings: PlanSettings, seed: int
) -> SumProtocol:
    """Return the protocol of one round for values[n], whose history has a step with the values `before`."""
    previous = _two_round_protocol(device, choice, before, settings, seed, len(values))
    previous.run()
    sums = device.codec.to_host(previous.codec.decode(previous.dense, previous.sparse, 1)[0])
    plan, chooser = previous.plan, Chooser()
    statistics = UnionCounts(tuple(occupied((sums != 0).astype(np.int32)).tolist()))
    add_to_history(chooser, plan.layout, statistics, previous.exponents)
    codec = device.codec.segments(plan.layout.table, [values], [None], 1)
    expected = Prediction.of(plan, chooser.history, seed)
    return OneRound(plan, chooser, codec, _exchanges(device, plan), expected)


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
    one_round: bool = False,
) -> Measured:
    """Measure a step that sums values[n] with `choice`; copying them to the device does not count.

    one_round: whether to sum in one round. The step before then has the same values at other positions,
    because no step of a training has exactly the positions of the step before.
    Raises NotExactError if a decoded element is wrong.
    """
    clock, codec, device_values = device.clock, device.codec, device.place(values)
    if one_round:
        # By whole rows and columns, so that the support stays of its kind.
        before = device.place(np.roll(values, COLUMNS * max(values.size // COLUMNS // 2, 1)))
        protocol = _one_round_protocol(device, choice, device_values, before, settings, seed)
        encode_s = 0.0
    else:
        nonzeros = int(np.count_nonzero(values))
        started = clock()
        protocol = _two_round_protocol(device, choice, device_values, settings, seed, nonzeros)
        encode_s = clock() - started
    exchanges, decoder = protocol.exchanges, StepDecoder(protocol.plan, codec)
    exchanges.enter_phase("encode")
    protocol.run()
    exchanges.enter_phase("decode")
    decoder.decode(protocol)
    codec.synchronize()
    exchanges.enter_phase(None)
    require_exact(values, codec.to_host(decoder.results[0].values), fixed_point_format(protocol))
    positions = None
    if choice.index is not None:
        union = codec.to_host(protocol.union).view(np.uint32)
        positions = HOST.positions(union, values.size)
    encode_s += exchanges.seconds["encode"]
    return Measured(exchanges.chunks, encode_s, exchanges.seconds["decode"], positions, protocol.left_over)


def fastest(run: Callable[[int], Measured]) -> Measured:
    """Return the fastest of run(0), run(1), ...: REPEATS runs, or fewer if they take long."""
    runs: list[Measured] = []
    while len(runs) < REPEATS and sum(measured.codec_s for measured in runs) < _ENOUGH_S:
        runs.append(run(len(runs)))
    return min(runs, key=lambda measured: measured.codec_s)


def require_exact(values: NDArray[np.float32], decoded: NDArray[np.float32], fixed: FixedPoint) -> None:
    """Raise NotExactError unless decoded[n] are the values in fixed point, by NumPy."""
    for start in range(0, decoded.size, _CHECK_BATCH):
        end = min(start + _CHECK_BATCH, decoded.size)
        factor = np.ldexp(1.0, fixed.scales_at(np.arange(start, end)))
        expected = (np.rint(values[start:end] * factor) / factor).astype(np.float32)
        wrong = np.flatnonzero(expected != decoded[start:end])
        if wrong.size:
            i = int(wrong[0])
            raise NotExactError(
                f"element {start + i}: {decoded[start + i]} was decoded instead of {expected[i]}; this is a "
                "bug in the codec, please report it with your command"
            )

"""Random jobs of any tensors, settings and implementations: each bit is an independent computation's."""

from dataclasses import dataclass, replace
from typing import get_args
from zlib import crc32

import numpy as np
import pytest
from sums_of_floats import DTYPES, FAR, SLOW, OnHost, check, host, typed

from peelsum.allreduce import BitmapIndex, BlockIndex, BloomIndex, NetworkModel, RequestedValues
from peelsum.allreduce.choosing import Chooser
from peelsum.codec import BFloat16, threads
from peelsum.codec.cpu import segments as cpu_segments

#: Around where words, rows, blocks of scales, and the words of a bitmap's blocks end.
SIZES = [0, 1, 2, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 511, 1023, 1024, 1025, 2047, 2049]
LARGE = [4095, 4097, 8191, 8193, 32767, 32768, 32769, 33_000]
KINDS = ["zeros", "one", "few", "rows", "some", "full"]
JOBS = 40
#: Batches of jobs, of which `make test` runs the first.
BATCHES = [pytest.param(batch, marks=[pytest.mark.slow] if batch else []) for batch in range(20)]
#: Seeds of jobs with large tensors.
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed > 2 else []) for seed in range(12)]
#: Seeds of jobs whose first worker has its tensors on a GPU.
GPU_SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed > 3 else []) for seed in range(40)]


class Forced(Chooser):
    """A chooser that draws indexes and blocks of scales in each step: the same on all workers."""

    seed, step = 0, 0

    def choose(self, tensors, settings):
        (chosen, one_round), self.step = super().choose(tensors, settings), self.step + 1
        rng = np.random.default_rng([self.seed, self.step])
        indexes = [drawn_index(rng) for _ in range(rng.integers(1, 4))]
        return tuple(self._forced(tensor, indexes) for tensor in chosen), one_round

    def _forced(self, tensor, indexes):
        rng = np.random.default_rng([self.seed, self.step, crc32(tensor.name.encode())])
        choice = replace(tensor.choice, scale_block=2 ** int(rng.integers(5, 16)))
        if choice.index is not None:
            choice = replace(choice, index=indexes[rng.integers(len(indexes))])
        return replace(tensor, choice=choice)


def drawn_index(rng):
    refined = bool(rng.random() < 0.5)
    return [
        BitmapIndex(),
        BlockIndex(2 ** int(rng.integers(1, 12)), refined),
        BloomIndex(int(rng.integers(1, 9)), int(rng.integers(1, 40)), refined),
    ][rng.integers(3)]


@dataclass
class Job:
    """A job's settings, and how to draw its tensors."""

    seed: int
    large: bool = False

    def __post_init__(self):
        rng = self.rng = np.random.default_rng(self.seed)
        self.workers = int(
            rng.choice([1, 2, 3, 4, 5, 8, 17, 32], p=[0.2, 0.3, 0.2, 0.12, 0.1, 0.05, 0.02, 0.01])
        )
        count = int(rng.choice([0, 1, 2, 3, 5, 9, 20, 70], p=[0.02, 0.2, 0.2, 0.2, 0.18, 0.1, 0.07, 0.03]))
        sizes = rng.choice(SIZES + (LARGE if count < 4 and self.workers < 5 else []), count)
        if self.large:
            self.workers, sizes = int(rng.integers(1, 4)), rng.integers(10**4, 2 * 10**5, 3)
        self.shapes = {f"t{n}": self._shape(int(size)) for n, size in enumerate(sizes)}
        self.dtypes = {name: str(rng.choice(DTYPES, p=[0.7, 0.15, 0.15])) for name in self.shapes}
        self.kinds = {name: str(rng.choice(KINDS)) for name in self.shapes}
        #: Decimal exponents of each tensor's largest values: also subnormal, and near the end.
        self.exponents = {name: float(rng.uniform(-44, 38)) for name in self.shapes}
        self.average, self.lanes = bool(rng.random() < 0.3), int(rng.choice([1, 8, 32, 77, 256]))
        forms = {name: str(rng.choice(["dense", "sparse", "auto"])) for name in self.shapes}
        self.settings = {
            "forms": [forms, "auto", "sparse", "dense"][rng.choice(4, p=[0.5, 0.25, 0.2, 0.05])],
            "values": str(rng.choice(get_args(RequestedValues))),
            "network": [SLOW, FAR, NetworkModel()][rng.integers(3)],
            "seed": int(rng.integers(2**62)),
            "cells_per_candidate": None if rng.random() < 0.7 else float(rng.uniform(0.05, 3)),
            "average": self.average,
        }
        self.divisor = self.workers if self.average else 1
        self.implementations = rng.choice(["cpu", "reference"], self.workers, p=[0.6, 0.4]).tolist()
        self.forced, self.non_finite = bool(rng.random() < 0.6), bool(rng.random() < 0.15)

    def _shape(self, size):
        if size == 1:
            return [(), (1,), (1, 1, 1)][self.rng.integers(3)]
        return (size // 3, 3) if size % 3 == 0 and self.rng.random() < 0.5 else (size,)

    def group(self, make_workers, implementations):
        group = make_workers(self.workers, self.lanes, implementations=implementations, **self.settings)
        if self.forced:
            for reduce in group.reduces:
                reduce._chooser.__class__, reduce._chooser.seed = Forced, self.seed
        return group

    def floats(self, name):
        """Draw a tensor of each worker, float32."""
        rng, size = self.rng, int(np.prod(self.shapes[name], dtype=int))
        if rng.random() < 0.4:
            self.kinds[name] = str(rng.choice(KINDS))
        share = {"zeros": 0.0, "one": 1.5 / max(size, 1), "few": 0.01, "rows": 1.0, "some": 0.2, "full": 1.0}
        lowest, growth = float(rng.choice([0, 1, 10, 30])), float(rng.choice([0, 0, 0, 1, 3, -4]))
        arrays = []
        for _ in range(self.workers):
            spread = np.repeat(rng.uniform(-lowest, 0, size // 16 + 1), 16)[:size]
            values = rng.uniform(-1, 1, size) * 10.0 ** np.minimum(self.exponents[name] + growth + spread, 38)
            chosen = rng.random(size) < share[self.kinds[name]]
            if self.kinds[name] == "rows":
                chosen &= np.repeat(rng.random(size // 64 + 1) < 0.1, 64)[:size]
            zeros = rng.choice(np.array([0.0, -0.0]), size)
            arrays.append(np.where(chosen, values, zeros).astype(np.float32).reshape(self.shapes[name]))
        if self.non_finite and size and rng.random() < 0.3:
            arrays[rng.integers(self.workers)].reshape(-1)[rng.integers(size)] = rng.choice([np.nan, np.inf])
        return arrays

    def step(self):
        """Draw a step: each worker's tensors, as they are passed, and the float32 that they equal."""
        given = [{} for _ in range(self.workers)]
        meant = {}
        for name in self.shapes:
            made = [typed(array, self.dtypes[name]) for array in self.floats(name)]
            meant[name] = [floats.copy() for _, floats in made]
            for tensors, (tensor, _) in zip(given, made, strict=True):
                tensors[name] = self._strided(tensor) if self.rng.random() < 0.2 else tensor
        return given, meant

    def _strided(self, tensor):
        if isinstance(tensor, BFloat16):
            return BFloat16(self._strided(tensor.bits))
        wide = np.repeat(tensor.reshape(*tensor.shape, 1), 2, -1)
        view = wide[..., 0]
        view.flags.writeable = False
        return view


def on_gpu(tensor):
    """Return a copy of a tensor on the device on which GPU tests run, with gaps if it has any."""
    import torch
    from gpu_device import DEVICE

    if isinstance(tensor, BFloat16):
        bits = np.ascontiguousarray(tensor.bits).view(np.int16)
        return torch.from_numpy(bits.copy()).view(torch.bfloat16).to(DEVICE)
    copy = torch.from_numpy(tensor.copy()).to(DEVICE)
    return copy if tensor.flags.c_contiguous or not tensor.ndim else copy.repeat_interleave(2, -1)[..., ::2]


def run(job, group):
    """Run the job's steps; return the words of all exchanges of all workers."""
    for _ in range(12 if job.seed % 10 == 9 else int(job.rng.integers(1, 5))):
        given, meant = job.step()
        over = job.rng.random(job.workers) < 0.3
        outs = [
            {n: np.full(shape, 7, np.float32) for n, shape in job.shapes.items() if job.rng.random() < 0.3}
            for _ in range(job.workers)
        ]
        for worker in np.flatnonzero(np.array(job.implementations) == "gpu").tolist():
            for tensors in (given[worker], outs[worker]):
                tensors.update({name: on_gpu(tensor) for name, tensor in tensors.items()})
        begin = [len(calls) for calls in group.calls]

        def work(worker, reduce):
            return reduce.sum(given[worker], in_place=bool(over[worker]), out=outs[worker])  # noqa: B023

        results = group.each(work)
        for name, arrays in meant.items():
            check([OnHost(result) for result in results], arrays, name, divisor=job.divisor)
        for worker, result in enumerate(results):
            sent = [part for call in group.calls[worker][begin[worker] :] for part in call if not part[2]]
            assert sum(tensor.words_sent for tensor in result.tensors) == sum(len(part[1]) for part in sent)
            assert result.summary.words_sent() == {one.name: one.words_sent for one in result.tensors}
            check_tally(result)
            for name, own in outs[worker].items():
                assert host(own).tobytes() == host(result[name].values).tobytes()
                assert 0 in own.shape or address(own) == address(result[name].values)
            for name, tensor in given[worker].items():
                written = over[worker] and name not in outs[worker] and replaceable(tensor)
                assert (address(getattr(tensor, "bits", tensor)) == address(result[name].values)) == written
                if not written:
                    assert typed_back(tensor).tobytes() == meant[name][worker].tobytes()
    return group.calls


def address(array):
    """Return the address of an array's or tensor's first byte, another one for each without elements."""
    if isinstance(array, np.ndarray | np.generic):
        return int(array.ctypes.data) if isinstance(array, np.ndarray) and array.size else -id(array)
    return int(array.data_ptr()) or -id(array)


def check_tally(result):
    """Compare counts with the arrays that they count."""
    statistics, contributed = result.summary.tensors(), result.contributions()
    assert result.summary.elements == sum(tensor.elements for tensor in result.tensors)
    assert result.summary.non_finite == sum(not tensor.finite for tensor in result.tensors)
    for one in result.tensors:
        summary, fixed = statistics[one.name], one.fixed
        ours = (summary.elements, summary.form, summary.index, summary.scale_block)
        assert ours == (one.elements, one.form, one.index, fixed and fixed.block)
        numbers = one.density, one.density_worker, one.error_bound
        np.testing.assert_equal((summary.density, summary.density_worker, summary.error_bound), numbers)
        own = one.quantized.reshape(-1)
        at = np.flatnonzero(own)
        scales = np.empty(0) if fixed is None else one.scales_at(at)
        for mine, theirs in zip(contributed[one.name], (at, own[at], scales), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        if one.finite:
            sent = len(one.positions) if fixed and one.index else np.count_nonzero(one.total)
            size = max(one.elements, 1)
            assert numbers[:2] == (sent / size, np.count_nonzero(one.quantized) / size)


def replaceable(tensor):
    """Whether the sum in place can be written over a tensor that has elements."""
    if isinstance(tensor, np.ndarray):
        return tensor.dtype == np.float32 and tensor.flags.carray and tensor.size > 0
    return str(tensor.dtype) == "torch.float32" and tensor.is_contiguous() and tensor.numel() > 0


def typed_back(tensor):
    if isinstance(tensor, BFloat16):
        return (np.ascontiguousarray(tensor.bits).astype(np.uint32) << 16).view(np.float32)
    if not isinstance(tensor, np.ndarray):
        tensor = tensor.float().cpu().numpy()
    return np.ascontiguousarray(tensor).astype(np.float32)


@pytest.mark.parametrize("batch", BATCHES)
def test_every_bit_is_right(make_workers, batch):
    for number in range(JOBS):
        job = Job(1000 * batch + number)
        run(job, job.group(make_workers, job.implementations))


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 60), marks=pytest.mark.slow)], ids=str)
def test_implementations_send_the_same_words(make_workers, seeds):
    """The numbers of a tensor that is not finite are undefined, so all are finite here."""
    for seed in seeds:
        sent = []
        for kind in ("cpu", "reference"):
            job = Job(seed)
            job.non_finite = False
            sent.append(run(job, job.group(make_workers, [kind] * job.workers)))
        for ours, theirs in zip(*sent, strict=True):
            assert [[(op, words.tolist()) for op, words, _ in call] for call in ours] == [
                [(op, words.tolist()) for op, words, _ in call] for call in theirs
            ]


@pytest.mark.parametrize("seed", GPU_SEEDS)
def test_sums_with_a_gpu_are_those_of_the_host(make_workers, seed):
    """On a device if there is one, else in Triton's interpreter; other workers are on the host."""
    shuffled = pytest.importorskip("gpu_order").shuffled
    job = Job(seed + 5000)
    job.implementations[0] = "gpu"
    with shuffled(seed):
        run(job, job.group(make_workers, job.implementations))


@pytest.mark.parametrize("seed", SEEDS)
def test_large_tensors_are_cut_into_pieces_over_several_cores(make_workers, monkeypatch, seed):
    monkeypatch.setattr(threads, "_CORES", 3)
    monkeypatch.setattr(threads, "PER_CORE", 2**14)
    monkeypatch.setattr(cpu_segments, "PER_CORE", 2**14)
    monkeypatch.setattr(cpu_segments, "_PIECE", 2**15)
    cpu_segments._pieces.cache_clear()
    job = Job(seed, large=True)
    run(job, job.group(make_workers, job.implementations))

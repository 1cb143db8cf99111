"""`peelsum bench gpu`: measure the codec and training on this machine's GPU, and write a page of it."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from peelsum.allreduce import Allreduce, Part
from peelsum.bench import gpu_tuning as gpu_launches
from peelsum.bench.codec.rows import LHC_CUDA, Point, bench_codec, points_of
from peelsum.bench.codec.rows import Row as CodecRow
from peelsum.bench.devices import require_gpu
from peelsum.bench.train.report import Row as TrainRow
from peelsum.bench.train.rows import Request, bench_train
from peelsum.codec import gpu_tuning
from peelsum.codec.gpu_memory import wait
from peelsum.summation import Words
from peelsum.training import MODELS, ModelName

ELEMENTS, QUICK_ELEMENTS = (2**17, 2**20, 2**24, 2**26), (2**20,)
DENSITIES, QUICK_DENSITIES = (0.001, 0.01, 0.05, 0.2), (0.01, 0.2)
#: The tensor of LHC's published benchmark.
LHC_POINT, QUICK_LHC_POINT = Point(2**27, 0.05, "uniform"), Point(2**20, 0.05, "uniform")
#: Bytes of the copy to whose speed the codec's is compared, and how often it is repeated.
_COPY_BYTES, _COPIES = 2**28, 20
_UNKNOWN = "unknown"
#: Tensors and elements of buckets; steps that are measured, and steps before them.
BUCKETS = ((1, 1000), (100, 1000), (100, 20_000))
_STEPS, _WARM_STEPS = 100, 5


@dataclass(frozen=True)
class Machine:
    """The machine on which the figures were measured."""

    date: str
    device: str
    """The GPU's name and memory."""
    driver: str
    versions: str
    """Versions of Python, torch, its CUDA, and Triton."""
    commit: str
    """The project's commit, with "+" if files differ from it."""
    copy_gbytes: float
    """Gigabytes of a tensor that the device copies per second in its own memory."""


@dataclass(frozen=True)
class BucketRow:
    """Steps with a bucket of dense tensors, of one worker, without a network."""

    tensors: int
    elements: int
    """Elements of each tensor."""
    tensor_us: float
    """Median time of a step, in microseconds, divided by the number of tensors."""


@dataclass(frozen=True)
class GpuResults:
    """The measurements of one GPU."""

    machine: Machine
    codec: list[CodecRow]
    train: list[TrainRow]
    buckets: list[BucketRow] = field(default_factory=list)


def bench_gpu(*, quick: bool = False, tune: bool = False, tell: Callable[[str], None]) -> GpuResults:
    """Measure codec and training; `tell` is called with what is measured next.

    tune: measure first how to launch the kernels, and write the device's row in the table of launches.

    Raises NoDeviceError if torch finds no GPU, and what `bench_codec`, `bench_train` and `tune` raise.
    """
    require_gpu()
    if tune:
        device = torch.device("cuda", torch.cuda.current_device())
        gpu_tuning.write_row(torch.cuda.get_device_name(device), gpu_launches.tune(device, tell=tell))
    tell("the device's copy")
    machine = _machine(_copy_gbytes())
    points = points_of(
        QUICK_ELEMENTS if quick else ELEMENTS, QUICK_DENSITIES if quick else DENSITIES, ["uniform"]
    )
    points.append(QUICK_LHC_POINT if quick else LHC_POINT)
    codec = []
    with closing(bench_codec(points, device="cuda")) as rows:
        tell(f"codec: {len(points)} tensors")
        for row in rows:
            codec.append(row)
            tell(f"codec: {row.elements:,} elements, {row.density:g}, {row.form}")
    tell("buckets of small tensors")
    buckets = [bucket_row(torch.device("cuda"), *size) for size in BUCKETS]
    train: list[TrainRow] = []
    models: Sequence[ModelName] = ("lstm",) if quick else MODELS
    for model in models:
        tell(f"training {model}")
        train += bench_train(Request(model, workers=2 if quick else 4, cpu=True, device="cuda"))
    return GpuResults(machine, codec, train, buckets)


class _Alone:
    """A backend of one worker."""

    lanes, workers, worker_id = 256, 1, 0

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        return [part.words.copy() for part in parts]


def bucket_row(device: torch.device, tensors: int, elements: int, steps: int = _STEPS) -> BucketRow:
    """Measure steps with a bucket of dense tensors, whose results take their places."""
    allreduce = Allreduce(_Alone(), forms="dense", implementation="gpu")
    bucket = list(torch.randn(tensors, elements, device=device))
    seconds = []
    for number in range(steps + _WARM_STEPS):
        wait(device)
        started = time.perf_counter()
        allreduce.sum(bucket, in_place=True)
        wait(device)
        if number >= _WARM_STEPS:
            seconds.append(time.perf_counter() - started)
    return BucketRow(tensors, elements, round(1e6 * median(seconds) / tensors, 2))


def write(results: GpuResults, page: Path, rows: Path) -> None:
    """Write the results as a page in Markdown, and as JSON."""
    rows.parent.mkdir(parents=True, exist_ok=True)
    rows.write_text(json.dumps(asdict(results), indent=2) + "\n")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(_page(results)) + "\n")


def _copy_gbytes() -> float:
    source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target, seconds = torch.empty_like(source), []
    for _ in range(_COPIES):
        torch.cuda.synchronize()
        started = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return round(_COPY_BYTES / median(seconds) / 1e9, 1)


def _machine(copy_gbytes: float) -> Machine:
    import triton

    properties = torch.cuda.get_device_properties(0)
    versions = (
        f"Python {platform.python_version()}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"Triton {triton.__version__}"
    )
    changed = _printed("git", "status", "--porcelain", "--untracked-files=no") not in ("", _UNKNOWN)
    return Machine(
        date=datetime.now(UTC).date().isoformat(),
        device=f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB",
        driver=_printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"),
        versions=versions,
        commit=_printed("git", "rev-parse", "--short", "HEAD") + ("+" if changed else ""),
        copy_gbytes=copy_gbytes,
    )


def _printed(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    except (OSError, subprocess.CalledProcessError):
        return _UNKNOWN
    return done.stdout.strip()


def _page(results: GpuResults) -> Iterator[str]:
    machine = results.machine
    yield from (
        "# On a GPU",
        "",
        "`make gpu` ran the tests that need a GPU, measured what follows, and wrote this page. The rows are",
        "in `benchmarks/results/gpu.json`.",
        "",
        f"- {machine.date}, commit {machine.commit}",
        f"- {machine.device}, driver {machine.driver}",
        f"- {machine.versions}",
        f"- The device copies {machine.copy_gbytes:g} GB/s within its memory.",
        "",
        *_codec_section(results),
        "",
        *_lhc_section(results),
        "",
        *_bucket_section(results),
        "",
        *_training_section(results),
    )


def _codec_section(results: GpuResults) -> Iterator[str]:
    yield from (
        "## Codec",
        "",
        "`peelsum bench codec --device cuda`, uniform support. The shares compare gradient bytes encoded or",
        "decoded per second with the device's copy. LHC is measured by our own kernels of its layout.",
        "",
        "| elements | non-zeros | form | index | bits per element | ms | encode, share | decode, share "
        "| LHC's best over it |",
        "|---|---|---|---|---|---|---|---|---|",
    )
    for row in results.codec:
        encode, decode = (
            gbps / 8 / results.machine.copy_gbytes for gbps in (row.encode_gbps, row.decode_gbps)
        )
        ratio = f"{1 / row.time_ratio_to_best:.2f}" if row.time_ratio_to_best else "-"
        yield (
            f"| {row.elements:,} | {row.density:.1%} | {row.form} | {row.index} | {row.bits_per_element:.3g} "
            f"| {row.codec_ms:.3g} | {encode:.1%} | {decode:.1%} | {ratio} |"
        )


def _lhc_section(results: GpuResults) -> Iterator[str]:
    yield from (
        "## LHC's published benchmark",
        "",
        "The largest tensor with 5 % of non-zeros. `lhc_cuda` has two cells for each non-zero, an index of",
        "one bit for each element, and one launch for a round of peeling. The ratios are of throughput.",
        "",
        "| elements | form | index | bits per element | encode, GB/s | decode, GB/s | encode, of LHC's "
        "| decode, of LHC's |",
        "|---|---|---|---|---|---|---|---|",
    )
    lhc = max(
        (row for row in results.codec if row.form == LHC_CUDA and row.density == LHC_POINT.density),
        key=lambda row: row.elements,
        default=None,
    )
    for row in results.codec:
        if lhc is not None and (row.elements, row.density) == (lhc.elements, lhc.density):
            yield (
                f"| {row.elements:,} | {row.form} | {row.index} | {row.bits_per_element:.3g} "
                f"| {row.encode_gbps / 8:.3g} | {row.decode_gbps / 8:.3g} "
                f"| {row.encode_gbps / lhc.encode_gbps:.2f} | {row.decode_gbps / lhc.decode_gbps:.2f} |"
            )


def _bucket_section(results: GpuResults) -> Iterator[str]:
    yield from (
        "## Buckets of small tensors",
        "",
        "Steps of `Allreduce.sum` with dense tensors in place, by one worker without a network.",
        "",
        "| tensors | elements of each | us a tensor |",
        "|---|---|---|",
    )
    for row in results.buckets:
        yield f"| {row.tensors} | {row.elements:,} | {row.tensor_us:.3g} |"


def _training_section(results: GpuResults) -> Iterator[str]:
    yield from (
        "## Training",
        "",
        "`peelsum bench train --cpu --device cuda`: all workers share the GPU; switch, server and links are",
        "this machine's, without a rate.",
        "",
        "| model | workers | sums by | iteration, ms | compute | encode / network / decode | MB a step "
        "| CPU ms a step | of gloo's |",
        "|---|---|---|---|---|---|---|---|---|",
    )
    for one in results.train:
        of_gloo = "-" if one.cpu_of_gloo is None else f"{one.cpu_of_gloo:.2f}"
        yield (
            f"| {one.model} | {one.workers} | {one.path} | {one.iteration_ms:.3g} | {one.compute_ms:.3g} "
            f"| {one.encode_ms:.2g} / {one.network_ms:.2g} / {one.decode_ms:.2g} "
            f"| {one.bytes_per_step / 1e6:.2f} | {one.cpu_ms:.3g} | {of_gloo} |"
        )

"""`peelsum bench gpu`: codec and training on this machine's GPU, as a page."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from peelsum.cli.bench.output import exit_if, measuring, print_json
from peelsum.cli.options import Json, without_torch


def gpu(
    page: Annotated[Path, typer.Option(help="File for the page, in Markdown.")] = Path("gpu.md"),
    rows: Annotated[Path, typer.Option(help="File for the rows, in JSON.")] = Path("gpu.json"),
    quick: Annotated[bool, typer.Option(help="Measure two tensors and one model.")] = False,
    tune: Annotated[
        bool, typer.Option(help="Measure how to launch kernels first, and write the device's row.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure codec and training on an NVIDIA GPU; write a page with device, driver, versions and date."""
    if find_spec("torch") is None:
        raise typer.BadParameter(without_torch("measuring a GPU"))
    from peelsum.bench import gpu as bench
    from peelsum.bench.codec import NotEnoughMemoryError, NotExactError
    from peelsum.bench.devices import NoDeviceError
    from peelsum.bench.gpu_tuning import TuningError
    from peelsum.topology import TopologyError

    with measuring(
        NoDeviceError, NotEnoughMemoryError, NotExactError, TopologyError, TuningError, json=json
    ) as tell:
        results = bench.bench_gpu(quick=quick, tune=tune, tell=tell)
    bench.write(results, page, rows)
    if json:
        print_json(results)
    else:
        print(f"wrote {page} and {rows}")
    exit_if(any(row.exact is False for row in results.train))

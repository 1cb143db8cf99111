"""`peelsum bench soak`: millions of chunks with losses, every sum compared."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from peelsum.cli.bench.output import exit_if, measuring, print_json
from peelsum.cli.options import Json, within


def soak(
    chunks: Annotated[int, typer.Option(help="Chunks to sum.")] = 10_000_000,
    loss: Annotated[float, typer.Option(help="Share of packets that every hop loses.")] = 0.001,
    seed: Annotated[int, typer.Option(help="Seed of the losses, and of the summed words.")] = 1,
    json: Json = False,
) -> None:
    """Sum millions of chunks with losses and wraps in one process, and compare every sum."""
    from peelsum.bench import soak as bench

    within("--chunks", chunks, 1, 1 << 31)
    within("--loss", loss, 0, 0.5)
    within("--seed", seed, 0, 2**63 - 1)
    with measuring(json=json) as tell:
        report = bench.soak(chunks, loss, seed, tell=tell)
    if json:
        print_json(report)
    else:
        print("\n".join(f"{name:>18} {value:,}" for name, value in asdict(report).items()))
    exit_if(report.wrong > 0)

"""`peelsum bench tofino-variants`: stages that the program would need on a Tofino with more lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from peelsum.cli.bench.output import measuring, print_json, printed
from peelsum.cli.options import Json, within

if TYPE_CHECKING:
    from peelsum.bench.switch.tofino_variants import Row


def tofino_variants(
    device: Annotated[Literal["tofino", "tofino2"], typer.Option(help="The chip.")] = "tofino",
    lanes: Annotated[
        list[int] | None, typer.Option(help="Lanes in one pass; default: 32 and 36, if no --pairs.")
    ] = None,
    pairs: Annotated[
        list[int] | None, typer.Option(help="Lanes in pairs; default: 56 and 64, if no --lanes.")
    ] = None,
    json: Json = False,
) -> None:
    """Compile the Tofino program with more lanes; needs p4c-barefoot and bfas, and a minute per row."""
    from peelsum.bench.switch.tofino_variants import compile_variants
    from peelsum.pipelines import PipelineError

    for option, counts in (("--lanes", lanes), ("--pairs", pairs)):
        for count in counts or ():
            within(option, count, 2, 1024)
    if not lanes and not pairs:
        lanes, pairs = [32, 36], [56, 64]
    with measuring(PipelineError, json=json):
        rows = list(printed(compile_variants(device, lanes or (), pairs or ()), _line, json=json))
        if json:
            print_json(rows)


def _line(row: Row) -> str:
    how = "in pairs" if row.pairs else "in one pass"
    return f"{row.device}: {row.lanes} lanes {how} take {row.stages} stages"

"""`peelsum plan`: its options; `peelsum.bench.plan` computes and prints the plan."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from peelsum.cli.options import Json, within
from peelsum.topology.interrupts import Interruption
from peelsum.topology.user_errors import reported


def plan(
    elements: Annotated[int, typer.Option(help="Elements of the tensor.")],
    density: Annotated[float, typer.Option(help="Share of elements that are not zero on some worker.")],
    gbps: Annotated[float, typer.Option(help="Gbit/s at which a worker sends words.")],
    rtt: Annotated[float, typer.Option(help="Seconds that the shortest exchange takes.")],
    workers: Annotated[int, typer.Option(help="Number of workers, whose sum must fit an int32.")] = 4,
    support: Annotated[
        Literal["uniform", "rows", "columns"],
        typer.Option(help="Non-zeros anywhere, in rows of 64, or in half of 256 columns."),
    ] = "uniform",
    predict: Annotated[
        bool, typer.Option(help="Send values with the index, by the last step's scale.")
    ] = False,
    check: Annotated[
        bool, typer.Option(help="Run every form here, and show the errors of the prediction.")
    ] = False,
    json: Json = False,
) -> None:
    """Predict bytes and time of every form of a tensor, and show which one is chosen, and why."""
    from peelsum.bench.codec import NotEnoughMemoryError, NotExactError
    from peelsum.bench.plan import Request, show

    within("--elements", elements, 1, 2**39)
    within("--density", density, 0, 0.5 if support == "columns" else 1)
    within("--gbps", gbps, 1e-6, 1e6)
    within("--rtt", rtt, 0, 3600)
    within("--workers", workers, 1, 1024)
    request = Request(elements, density, gbps, rtt, workers, support, predict)
    with reported(NotEnoughMemoryError, NotExactError), Interruption():
        show(request, check=check, json=json)

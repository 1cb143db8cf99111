"""`peelsum plan`: its options. What is made of them stands in `peelsum.bench.plan`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from peelsum.cli.options import Json, within
from peelsum.topology.interrupts import Interruption
from peelsum.topology.user_errors import reported


def plan(
    elements: Annotated[int, typer.Option(help="Elements of the tensor.")],
    density: Annotated[float, typer.Option(help="Share of them that is not zero on some worker.")],
    gbps: Annotated[float, typer.Option(help="Gbit/s at which a worker sends words.")],
    rtt: Annotated[float, typer.Option(help="Seconds that an exchange takes, however short.")],
    workers: Annotated[int, typer.Option(help="Workers that sum: they share the bits of an int32.")] = 4,
    support: Annotated[
        Literal["uniform", "rows", "columns"],
        typer.Option(help="Non-zeros anywhere, in rows of 64, or in half of 256 columns."),
    ] = "uniform",
    predict: Annotated[
        bool, typer.Option(help="Send values with the index, by the last step's scale.")
    ] = False,
    check: Annotated[
        bool, typer.Option(help="Run every way here, and show what was foretold wrong.")
    ] = False,
    json: Json = False,
) -> None:
    """Ways to send a tensor: bytes and time by formula, which one is chosen, and why."""
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
